"""Objects that name each other: the Service and the pods it serves, volumes and what they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.emit.checks.walk import POD, pod_spec
from runner.emit.findings import Finding
from runner.emit.names import JOB_LABEL, LEADER

_CLUSTER_WIDE = ("Namespace", "PersistentVolume")


def check(objects: Sequence[dict[str, Any]], *, distributed: bool) -> list[Finding]:
    """References between the objects of one manifest."""
    findings: list[Finding] = []
    by_kind = {item["kind"]: item for item in objects}
    job = by_kind["Job"]
    spec = pod_spec(job)
    namespace = job["metadata"].get("namespace")
    for item in objects:
        own = item["metadata"].get("namespace")
        if item["kind"] not in _CLUSTER_WIDE and own != namespace:
            findings.append(
                Finding(f"{item['kind']}.metadata.namespace", f"{own!r} is not the Job's, {namespace!r}")
            )
    if distributed:
        _service(by_kind.get("Service"), job, findings)
    _volumes(by_kind, spec, findings)
    account = by_kind.get("ServiceAccount")
    if account is not None and spec.get("serviceAccountName") != account["metadata"]["name"]:
        findings.append(
            Finding(f"{POD}.serviceAccountName", f"not the emitted {account['metadata']['name']!r}")
        )
    return findings


def _service(service: dict[str, Any] | None, job: dict[str, Any], findings: list[Finding]) -> None:
    if service is None:
        findings.append(Finding("Service", "missing: the pods could not find each other"))
        return
    spec, name, job_name = service["spec"], service["metadata"]["name"], job["metadata"]["name"]
    if spec.get("clusterIP") != "None":
        findings.append(
            Finding("Service.spec.clusterIP", "not None: pods get DNS names from a headless Service only")
        )
    if spec.get("publishNotReadyAddresses") is not True:
        findings.append(
            Finding(
                "Service.spec.publishNotReadyAddresses",
                "not true: pods look for each other before they are ready",
            )
        )
    labels = dict(job["spec"]["template"].get("metadata", {}).get("labels") or {}) | {JOB_LABEL: job_name}
    if not spec.get("selector") or not spec["selector"].items() <= labels.items():
        findings.append(
            Finding("Service.spec.selector", f"{spec.get('selector')} does not select the Job's pods")
        )
    if pod_spec(job).get("subdomain") != name:
        findings.append(
            Finding(f"{POD}.subdomain", f"not the Service's name, {name!r}: the pods get no DNS names")
        )
    leader = f"{job_name}-0.{name}"
    for index, item in enumerate(pod_spec(job)["containers"]):
        for place, entry in enumerate(item.get("env") or []):
            if entry["name"] == LEADER and entry.get("value") != leader:
                path = f"{POD}.containers[{index}].env[{place}].value"
                findings.append(Finding(path, f"{entry.get('value')!r} is not the leader's name, {leader!r}"))


def _volumes(by_kind: dict[str, Any], spec: dict[str, Any], findings: list[Finding]) -> None:
    recipe, claim, volume = (
        by_kind.get(kind) for kind in ("ConfigMap", "PersistentVolumeClaim", "PersistentVolume")
    )
    sources = list(spec.get("volumes") or [])
    maps = [item["configMap"].get("name") for item in sources if "configMap" in item]
    if recipe is None or recipe["metadata"]["name"] not in maps:
        findings.append(Finding(f"{POD}.volumes", "the emitted recipe is not among them"))
    claims = [
        item["persistentVolumeClaim"].get("claimName") for item in sources if "persistentVolumeClaim" in item
    ]
    if not claims:
        findings.append(Finding(f"{POD}.volumes", "no claim: checkpoints would vanish with the pods"))
    if claim is None or volume is None:
        return
    if claim["metadata"]["name"] not in claims:
        findings.append(
            Finding(f"{POD}.volumes", f"the emitted claim {claim['metadata']['name']!r} is not among them")
        )
    if claim["spec"].get("volumeName") != volume["metadata"]["name"]:
        findings.append(
            Finding("PersistentVolumeClaim.spec.volumeName", f"not {volume['metadata']['name']!r}")
        )
    for item in (claim, volume):
        if item["spec"].get("storageClassName") != "":
            findings.append(
                Finding(
                    f"{item['kind']}.spec.storageClassName",
                    'not "": a default class would provision another volume',
                )
            )
        if "ReadWriteMany" not in (item["spec"].get("accessModes") or []):
            findings.append(Finding(f"{item['kind']}.spec.accessModes", "ReadWriteMany is missing"))
