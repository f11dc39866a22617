"""Quantities, devices and huge pages."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from runner.emit.checks.walk import POD, QUALIFIED, containers, pod_spec
from runner.emit.findings import Finding
from runner.recipe.quantity import parse_quantity

_STANDARD = ("cpu", "memory", "ephemeral-storage")
_EFA = "vpc.amazonaws.com/efa"
_MIB = 2**20


def check(job: dict[str, Any]) -> list[Finding]:
    """`resources` of every container, and sizes of volumes against them."""
    findings: list[Finding] = []
    memory = Decimal(0)
    for path, item in containers(job):
        resources = item.get("resources") or {}
        requests, limits = (_amounts(resources, field, path, findings) for field in ("requests", "limits"))
        for name in sorted(requests.keys() | limits.keys()):
            _pair(name, requests.get(name), limits.get(name), f"{path}.resources", findings)
        pages = [name for name in limits if name.startswith("hugepages-")]
        if pages and not {"cpu", "memory"} & (requests.keys() | limits.keys()):
            findings.append(
                Finding(f"{path}.resources.limits.{pages[0]}", "huge pages need cpu or memory beside them")
            )
        efa = limits.get(_EFA, requests.get(_EFA, Decimal(0)))
        provider = [entry for entry in item.get("env") or [] if entry["name"].startswith("FI_")]
        if provider and not efa:
            findings.append(
                Finding(f"{path}.env", f"{provider[0]['name']} is set, but the pod asks for no EFA interface")
            )
        memory += limits.get("memory", Decimal(0))
    _memory_volumes(job, memory, findings)
    return findings


def _amounts(resources: dict[str, Any], field: str, path: str, findings: list[Finding]) -> dict[str, Decimal]:
    amounts = {}
    for name, text in (resources.get(field) or {}).items():
        where = f"{path}.resources.{field}.{name}"
        amount = parse_quantity(text)
        if not QUALIFIED.fullmatch(name) or ("/" not in name and not _standard(name)):
            findings.append(Finding(where, "no such resource; devices have a prefix, as nvidia.com/gpu"))
        if amount is None:
            findings.append(
                Finding(where, f"{text!r} is no quantity: a number with m, k, M, G, T, Ki, Mi, Gi or Ti")
            )
        elif amount < 0:
            findings.append(Finding(where, f"{text} is negative"))
        else:
            amounts[name] = amount
    return amounts


def _standard(name: str) -> bool:
    return name in _STANDARD or name.startswith("hugepages-")


def _pair(
    name: str, request: Decimal | None, limit: Decimal | None, path: str, findings: list[Finding]
) -> None:
    exact = "/" in name or name.startswith("hugepages-")
    if exact and limit is None:
        findings.append(Finding(f"{path}.limits.{name}", "missing: a device or huge page needs a limit"))
    elif exact and request is not None and request != limit:
        findings.append(
            Finding(f"{path}.requests.{name}", f"{request} differs from the limit {limit}: make them equal")
        )
    elif request is not None and limit is not None and request > limit:
        findings.append(Finding(f"{path}.requests.{name}", f"{request} exceeds the limit {limit}"))
    for field, amount in (("requests", request), ("limits", limit)):
        if amount is None:
            continue
        if "/" in name and amount != amount.to_integral_value():
            findings.append(Finding(f"{path}.{field}.{name}", f"{amount}: devices are whole numbers"))
        if name == "hugepages-2Mi" and amount % (2 * _MIB):
            findings.append(Finding(f"{path}.{field}.{name}", f"{amount} bytes are no multiple of 2Mi"))


def _memory_volumes(job: dict[str, Any], memory: Decimal, findings: list[Finding]) -> None:
    for index, volume in enumerate(pod_spec(job).get("volumes") or []):
        empty = volume.get("emptyDir")
        if not isinstance(empty, dict):
            continue
        path = f"{POD}.volumes[{index}].emptyDir"
        medium, limit = empty.get("medium", ""), empty.get("sizeLimit")
        size = parse_quantity(limit) if limit is not None else None
        if limit is not None and size is None:
            findings.append(Finding(f"{path}.sizeLimit", f"{limit!r} is no quantity"))
        if medium == "Memory" and limit is None:
            findings.append(
                Finding(f"{path}.sizeLimit", "missing: it counts toward the pod's memory, so bound it")
            )
        if medium == "Memory" and size is not None and memory and size > memory:
            findings.append(Finding(f"{path}.sizeLimit", f"{limit} exceeds the pod's memory limit"))
        if medium not in ("", "Memory") and not str(medium).startswith("HugePages"):
            findings.append(Finding(f"{path}.medium", f"{medium!r}: Memory, HugePages or nothing"))
