"""Nodes of the example cluster's system group, and what they can hand out."""

from __future__ import annotations

from typing import Any

from runner.recipe.quantity import parse_quantity

_GIB = 2**30
_NODES = {"m6i.large": (2, 8), "m6i.xlarge": (4, 16), "m6i.2xlarge": (8, 32), "m6i.4xlarge": (16, 64)}
_ADDONS_CPU, _KEPT_MEMORY = 1, 4  # CPUs and GiB for system, kubelet and add-ons


def fits(requests: dict[str, Any], instance: str) -> bool:
    """Whether a pod of these requests finds room on an otherwise empty node."""
    cpus, memory = _NODES[instance]
    cpu, needed = parse_quantity(requests["cpu"]), parse_quantity(requests["memory"])
    assert cpu is not None and needed is not None
    return cpu <= cpus - _ADDONS_CPU and needed <= (memory - _KEPT_MEMORY) * _GIB
