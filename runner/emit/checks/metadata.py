"""Names, labels and annotations."""

from __future__ import annotations

from typing import Any

from runner.emit.checks.walk import DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, QUALIFIED, SERVICE_NAME
from runner.emit.findings import Finding
from runner.recipe.checks.kubernetes import looks_like_credential

_LONGEST_ANNOTATIONS = 256 * 1024
_LARGEST_MAP = 2**20


def check(item: dict[str, Any]) -> list[Finding]:
    """Metadata of one object and, in a Job, of its pods."""
    kind = item["kind"]
    metadata = item.get("metadata") or {}
    findings = _name(kind, metadata.get("name")) + _texts(metadata, f"{kind}.metadata")
    namespace = metadata.get("namespace")
    if namespace is not None and not DNS_LABEL.fullmatch(str(namespace)):
        findings.append(Finding(f"{kind}.metadata.namespace", f"{namespace!r} is no namespace name"))
    if kind == "Job":
        template = item["spec"]["template"].get("metadata") or {}
        findings += _texts(template, "Job.spec.template.metadata")
    if kind == "ConfigMap":
        size = sum(len(key) + len(text.encode()) for key, text in (item.get("data") or {}).items())
        if size > _LARGEST_MAP:
            findings.append(
                Finding("ConfigMap.data", f"{size} bytes of {_LARGEST_MAP} that a ConfigMap may hold")
            )
    return findings


def _name(kind: str, name: Any) -> list[Finding]:
    pattern = {"Service": SERVICE_NAME, "Namespace": DNS_LABEL, "Job": DNS_LABEL}.get(kind, DNS_SUBDOMAIN)
    if isinstance(name, str) and pattern.fullmatch(name):
        return []
    first = "begin with a letter, " if kind == "Service" else ""
    return [
        Finding(
            f"{kind}.metadata.name",
            f"{name!r} is no name for a {kind}: lower-case letters, digits, dashes, {first}end in letter or digit, "
            f"{253 if pattern is DNS_SUBDOMAIN else 63} characters at most",
        )
    ]


def _texts(metadata: dict[str, Any], path: str) -> list[Finding]:
    findings = []
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            if not QUALIFIED.fullmatch(key):
                findings.append(
                    Finding(f"{path}.{field}.{key}", "no valid key: [prefix/]name, 63 characters a name")
                )
            if field == "labels" and not LABEL_VALUE.fullmatch(value):
                findings.append(
                    Finding(
                        f"{path}.labels.{key}",
                        f"{value!r}: letters, digits, `-`, `_`, `.`, 63 characters at most, ends in letter or digit",
                    )
                )
            if field == "annotations" and looks_like_credential("", value):
                findings.append(Finding(f"{path}.annotations.{key}", "looks like a credential: leave it out"))
    total = sum(len(key) + len(value) for key, value in (metadata.get("annotations") or {}).items())
    if total > _LONGEST_ANNOTATIONS:
        findings.append(
            Finding(f"{path}.annotations", f"{total} characters of {_LONGEST_ANNOTATIONS} allowed")
        )
    return findings
