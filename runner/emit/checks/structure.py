"""Shapes: mappings where mappings belong, texts where texts belong. A patch may have put anything anywhere."""

from __future__ import annotations

from typing import Any

from runner.emit.checks.walk import POD
from runner.emit.findings import Finding

_LISTS_OF_MAPPINGS = {
    "containers", "initContainers", "volumes", "volumeMounts", "env", "envFrom", "tolerations", "imagePullSecrets",
    "ports", "rules", "onPodConditions",
}  # fmt: skip
_MAPPINGS = {
    "metadata", "spec", "template", "resources", "requests", "limits", "securityContext", "nodeSelector", "selector",
    "affinity", "podFailurePolicy", "onExitCodes", "capabilities", "labels", "annotations", "emptyDir",
}  # fmt: skip
_TEXTS = {"labels", "annotations", "nodeSelector", "data", "matchLabels"}
_INTEGERS = {
    "completions", "parallelism", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "activeDeadlineSeconds",
    "ttlSecondsAfterFinished", "terminationGracePeriodSeconds", "containerPort", "runAsUser", "runAsGroup", "fsGroup",
}  # fmt: skip
_BOOLEANS = {
    "automountServiceAccountToken", "hostNetwork", "hostPID", "hostIPC", "privileged", "readOnly", "runAsNonRoot",
    "allowPrivilegeEscalation", "readOnlyRootFilesystem", "publishNotReadyAddresses", "immutable", "suspend",
    "manualSelector", "enableServiceLinks",
}  # fmt: skip


def check(item: dict[str, Any]) -> list[Finding]:
    """What is not of the kind that its name promises, at any depth."""
    kind = str(item.get("kind"))
    findings: list[Finding] = []
    _walk(item, kind, findings)
    if findings or kind != "Job":
        return findings
    template = item.get("spec", {}).get("template", {})
    if not template.get("spec", {}).get("containers"):
        findings.append(Finding(f"{POD}.containers", "no container is left"))
    return findings


def _walk(value: Any, path: str, findings: list[Finding]) -> None:
    if isinstance(value, list):
        for index, below in enumerate(value):
            _walk(below, f"{path}[{index}]", findings)
        return
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        where = f"{path}.{key}"
        expected = _expected(path, str(key), below)
        if expected is not None:
            findings.append(Finding(where, f"{below!r} is not {expected}"))
        elif key in _TEXTS and isinstance(below, dict):
            findings += [
                Finding(f"{where}.{name}", f"{text!r} is not a text: quote it")
                for name, text in below.items()
                if not isinstance(text, str)
            ]
        else:
            _walk(below, where, findings)


def _expected(path: str, key: str, value: Any) -> str | None:
    """What belongs here, where `value` is something else."""
    in_env = ".env[" in path.rsplit(".", 1)[-1] or path.rsplit(".", 1)[-1].startswith("env[")
    if in_env and key in ("name", "value"):
        return None if isinstance(value, str) else "a text: quote it"
    if key in _LISTS_OF_MAPPINGS:
        good = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        return None if good else "a list of mappings"
    if key in _MAPPINGS:
        return None if isinstance(value, dict) else "a mapping"
    if key in _INTEGERS:
        return None if isinstance(value, int) and not isinstance(value, bool) else "an integer"
    if key in _BOOLEANS:
        return None if isinstance(value, bool) else "true or false"
    return None
