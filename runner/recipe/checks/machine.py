"""R7xx: instances, EFA, Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.instances import INSTANCES, nearest_instance

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


@rule("R701")
def instance_is_known(recipe: Recipe, report: Report) -> None:
    """`cluster.instance_type` is in the catalogue, or `cluster.instance` states its shape."""
    cluster = recipe.cluster
    name = cluster.instance_type
    if name is None or cluster.instance is not None or name in INSTANCES:
        return
    if name.removeprefix("ml.") in INSTANCES:
        hint = f"give the EC2 name, {name.removeprefix('ml.')}, and set `cluster.kubernetes.hyperpod: true`"
    else:
        near = nearest_instance(name)
        hint = (
            f"did you mean {near}? Otherwise state" if near else "state"
        ) + " its shape in `cluster.instance`"
    report.add("cluster.instance_type", f"{name} is not in the catalogue", hint)
