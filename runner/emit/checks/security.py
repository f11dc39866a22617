"""Pod Security levels: what the namespace would refuse. The Job would be accepted, and its pods never appear."""

from __future__ import annotations

from typing import Any

from runner.emit.checks.walk import POD, containers, pod_spec
from runner.emit.findings import Finding

_BASELINE_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
_RESTRICTED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


def check(job: dict[str, Any], level: str) -> list[Finding]:
    """What the pods have that `level` forbids."""
    if level == "privileged":
        return []
    findings: list[Finding] = []

    def wrong(path: str, message: str) -> None:
        findings.append(Finding(path, f"{message}; Pod Security level {level} refuses the pods"))

    spec = pod_spec(job)
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            wrong(f"{POD}.{field}", "the host's")
    for index, volume in enumerate(spec.get("volumes") or []):
        if "hostPath" in volume:
            wrong(f"{POD}.volumes[{index}].hostPath", "a folder of the host")
        elif level == "restricted" and volume.keys() - {"name"} - _RESTRICTED_VOLUMES:
            wrong(f"{POD}.volumes[{index}]", "a volume of this type")
    for path, item in containers(job):
        own = item.get("securityContext") or {}
        if own.get("privileged"):
            wrong(f"{path}.securityContext.privileged", "a privileged container")
        for port_index, port in enumerate(item.get("ports") or []):
            if port.get("hostPort"):
                wrong(f"{path}.ports[{port_index}].hostPort", "a port of the host")
        capabilities = own.get("capabilities") or {}
        allowed = _BASELINE_CAPABILITIES if level == "baseline" else frozenset({"NET_BIND_SERVICE"})
        for capability in capabilities.get("add") or []:
            if capability not in allowed:
                wrong(f"{path}.securityContext.capabilities.add", f"capability {capability}")
        if level == "restricted":
            _restricted(spec, own, path, wrong)
    return findings


def _restricted(spec: dict[str, Any], own: dict[str, Any], path: str, wrong: Any) -> None:
    pod = spec.get("securityContext") or {}
    if own.get("allowPrivilegeEscalation") is not False:
        wrong(f"{path}.securityContext.allowPrivilegeEscalation", "not false")
    if "ALL" not in ((own.get("capabilities") or {}).get("drop") or []):
        wrong(f"{path}.securityContext.capabilities.drop", "ALL is not dropped")
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        wrong(f"{path}.securityContext.runAsNonRoot", "not true")
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        wrong(f"{path}.securityContext.runAsUser", "user 0")
    profile = own.get("seccompProfile", pod.get("seccompProfile")) or {}
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        wrong(f"{path}.securityContext.seccompProfile", "no seccomp profile")
