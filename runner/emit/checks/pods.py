"""Containers, volumes, mounts, environment, tolerations."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from runner.emit.checks.walk import DNS_LABEL, ENV_NAME, LABEL_VALUE, POD, QUALIFIED, containers, pod_spec
from runner.emit.findings import Finding
from runner.recipe.checks.kubernetes import looks_like_credential
from runner.recipe.image import image_problem
from runner.recipe.mounts import SEALED, Mount, conflicts, sealed_volumes

_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_LARGEST_PORT = 65535
_EFFECTS = (None, "NoSchedule", "PreferNoSchedule", "NoExecute")


def check(job: dict[str, Any]) -> list[Finding]:
    """The pod template's own fields."""
    findings: list[Finding] = []
    spec = pod_spec(job)
    volumes, sealed = _volumes(spec, findings), sealed_volumes(spec.get("volumes") or [])
    seen: set[str] = set()
    for path, item in containers(job):
        name = item.get("name")
        if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
            findings.append(Finding(f"{path}.name", f"{name!r} is no container name"))
        elif name in seen:
            findings.append(Finding(f"{path}.name", f"{name!r} is used twice"))
        seen.add(str(name))
        image = item.get("image")
        problem = image_problem(image) if image else "name an image"
        if problem:
            findings.append(Finding(f"{path}.image", f"{image!r}: {problem}"))
        command = item.get("command") or []
        if command and PurePosixPath(str(command[0])).name in _SHELLS:
            findings.append(
                Finding(
                    f"{path}.command", "a shell as the first process swallows SIGTERM: run nvrx-run itself"
                )
            )
        for place, port in enumerate(item.get("ports") or []):
            if not 1 <= port.get("containerPort", 1) <= _LARGEST_PORT:
                where = f"{path}.ports[{place}].containerPort"
                findings.append(Finding(where, f"{port['containerPort']} is not 1 to {_LARGEST_PORT}"))
        _environment(item, path, findings)
        _mounts(item, path, volumes, sealed, findings)
    for index, toleration in enumerate(spec.get("tolerations") or []):
        _toleration(toleration, f"{POD}.tolerations[{index}]", findings)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not QUALIFIED.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            findings.append(Finding(f"{POD}.nodeSelector.{key}", f"{value!r}: no valid label"))
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if grace < 1:
        findings.append(Finding(f"{POD}.terminationGracePeriodSeconds", f"{grace} leaves no time to save"))
    return findings


def _volumes(spec: dict[str, Any], findings: list[Finding]) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        path, name = f"{POD}.volumes[{index}]", volume.get("name")
        if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
            findings.append(Finding(f"{path}.name", f"{name!r} is no volume name"))
        elif name in names:
            findings.append(Finding(f"{path}.name", f"{name!r} is used twice"))
        names.add(str(name))
        sources = sorted(volume.keys() - {"name"})
        if len(sources) != 1:
            findings.append(Finding(path, f"exactly one source, not {sources or 'none'}"))
    return names


def _environment(item: dict[str, Any], path: str, findings: list[Finding]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(item.get("env") or []):
        where, name = f"{path}.env[{index}]", str(entry.get("name"))
        if not ENV_NAME.fullmatch(name) or name.startswith(".."):
            findings.append(Finding(f"{where}.name", f"{name!r} is no name for an environment variable"))
        if name in seen:
            findings.append(Finding(f"{where}.name", f"{name!r} is set twice"))
        seen.add(name)
        if "value" in entry and "valueFrom" in entry:
            findings.append(Finding(where, "one of value and valueFrom"))
        if looks_like_credential(name, entry.get("value") or ""):
            findings.append(
                Finding(f"{where}.value", f"{name} looks like a credential: use valueFrom.secretKeyRef")
            )


def _mounts(
    item: dict[str, Any], path: str, volumes: set[str], sealed: set[str], findings: list[Finding]
) -> None:
    mounts: list[Mount] = []
    places: list[str] = []
    for index, mount in enumerate(item.get("volumeMounts") or []):
        where = f"{path}.volumeMounts[{index}]"
        target = mount.get("mountPath")
        if mount.get("name") not in volumes:
            findings.append(Finding(f"{where}.name", f"there is no volume {mount.get('name')!r}"))
        if not isinstance(target, str) or not target.startswith("/") or ":" in target:
            findings.append(Finding(f"{where}.mountPath", f"{target!r}: an absolute path without a colon"))
        else:
            mounts.append(Mount(target, mount["name"] in sealed or target in SEALED))
            places.append(f"{where}.mountPath")
    for index, message, _ in conflicts(mounts):
        findings.append(Finding(places[index], message))


def _toleration(item: dict[str, Any], path: str, findings: list[Finding]) -> None:
    operator, key = item.get("operator", "Equal"), item.get("key")
    if operator not in ("Exists", "Equal"):
        findings.append(Finding(f"{path}.operator", f"{operator!r}: Exists or Equal"))
    if operator == "Exists" and item.get("value"):
        findings.append(Finding(f"{path}.value", f"{item['value']!r}: Exists takes no value"))
    if operator == "Equal" and not key:
        findings.append(Finding(f"{path}.key", "Equal needs a key"))
    if key and not QUALIFIED.fullmatch(str(key)):
        findings.append(Finding(f"{path}.key", f"{key!r} is no valid key"))
    if not LABEL_VALUE.fullmatch(str(item.get("value", ""))):
        findings.append(Finding(f"{path}.value", f"{item['value']!r} is no valid value"))
    if item.get("effect") not in _EFFECTS:
        findings.append(
            Finding(f"{path}.effect", f"{item['effect']!r}: NoSchedule, PreferNoSchedule or NoExecute")
        )
