"""R7xx: instances, EFA, Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.derived import pod_restarts
from runner.recipe.instances import INSTANCES, nearest_instance
from runner.recipe.layer_settings import ft_launcher

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_LONGEST_HOST_NAME = 63
_MOST_RESTARTS = 1000


@rule("R701")
def instance_is_known(recipe: Recipe, report: Report) -> None:
    """`cluster.instance_type` must be in the catalogue, or `cluster.instance` state its shape."""
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


@rule("R703", "warning")
def gpus_are_used(recipe: Recipe, report: Report) -> None:
    """`cluster.processes_per_node` below the GPUs of the instance leaves GPUs idle that are paid for."""
    node, ranks = report.facts.node, recipe.cluster.processes_per_node
    if node is None or not node.gpus:
        return
    if report.facts.on_gpus is False:
        report.add(
            "cluster.accelerator",
            f"the {node.gpus} GPUs of {node.name} stay idle",
            also="cluster.instance_type",
        )
    elif ranks is not None and ranks < node.gpus:
        report.add(
            "cluster.processes_per_node",
            f"{ranks} ranks leave {node.gpus - ranks} of the {node.gpus} GPUs of {node.name} idle",
            "leave it out",
            also="cluster.instance_type",
        )


@rule("R706", "warning")
def nodes_talk_over_efa(recipe: Recipe, report: Report) -> None:
    """Several nodes without EFA exchange gradients over TCP, an order of magnitude slower."""
    kubernetes, node = recipe.cluster.kubernetes, report.facts.node
    if recipe.cluster.nodes == 1 or node is None or not report.facts.on_gpus:
        return
    if node.efa == 0:
        report.add("cluster.instance_type", f"{recipe.cluster.nodes} nodes of {node.name} have no EFA between them",
                   "use a larger size, or one node", also="cluster.nodes")  # fmt: skip
    elif kubernetes is not None and kubernetes.efa is not None and kubernetes.efa < node.efa:
        message = f"{kubernetes.efa} of the {node.efa} EFA interfaces of {node.name} are used"
        report.add("cluster.kubernetes.efa", message, "leave it out to use all")


@rule("R707")
def name_fits_kubernetes(recipe: Recipe, report: Report) -> None:
    """The name must make a Service name and, with the pod's index, a host name.

    A Service's name starts with a letter; a pod's host name is the Job's name, a dash and the index, at most 63
    characters together.
    """
    if recipe.cluster.kubernetes is None:
        return
    if recipe.name[0].isdigit():
        report.add(
            "name", f"{recipe.name} cannot name a Service: it starts with a digit", "start with a letter"
        )
    length = len(recipe.name) + 1 + len(str(recipe.cluster.nodes - 1))
    if length > _LONGEST_HOST_NAME:
        report.add(
            "name",
            f"with the index of {recipe.cluster.nodes} pods it makes host names of {length} characters, and "
            f"{_LONGEST_HOST_NAME} are allowed",
            f"shorten it by {length - _LONGEST_HOST_NAME}",
            also="cluster.nodes",
        )


@rule("R708")
def kubernetes_knows_the_node(recipe: Recipe, report: Report) -> None:
    """`cluster.kubernetes` needs `cluster.instance_type`: GPUs, CPU, memory and EFA of a pod follow from it."""
    cluster = recipe.cluster
    if cluster.kubernetes is not None and cluster.instance_type is None:
        report.add(
            "cluster.kubernetes", "nothing says what nodes the pods run on", "set cluster.instance_type"
        )


@rule("R709", "warning")
def backoff_covers_restarts(recipe: Recipe, report: Report) -> None:
    """`cluster.kubernetes.pod_restarts` should cover the pods that are expected to fail.

    With `layer: none` a fault fails the pods of every node, and the Job needs that many restarts for each fault. With
    a layer that restarts workers inside the pod, a pod fails when its launcher's budget is spent or its node is lost;
    with no restarts left, one lost node ends the Job.
    """
    kubernetes, nodes = recipe.cluster.kubernetes, recipe.cluster.nodes
    if kubernetes is None or kubernetes.pod_restarts is None:
        return
    if recipe.recovery.layer == "none":
        needed, why = nodes * max(1, report.facts.faults), "a fault fails the pods of every node"
    else:
        needed, why = nodes, "a lost node takes the pods of all nodes with it"
    if kubernetes.pod_restarts < needed:
        report.add(
            "cluster.kubernetes.pod_restarts",
            f"{kubernetes.pod_restarts} is below {needed}: {why}",
            f"use at least {needed}, or leave it out",
            also="recovery.layer",
        )


@rule("R710", "warning")
def launcher_gives_up_before_job(recipe: Recipe, report: Report) -> None:
    """ft_launcher's `max_restarts: 0` leaves every hard fault to the Job.

    The Job replaces pods, not workers: minutes instead of seconds.
    """
    s = ft_launcher(recipe)
    if s and s.max_restarts == 0:
        report.add(
            "recovery.ft_launcher.max_restarts", "with no restart the launcher mends nothing", "use 1 or more"
        )


@rule("R711", "warning")
def crash_loop_ends(recipe: Recipe, report: Report) -> None:
    """The launcher's `max_restarts` and the Job's `pod_restarts` multiply: together they should end a crash loop.

    A launcher whose budget is spent fails its pod, and the next pod starts with a full budget. Past a thousand
    restarts, a run that makes a little progress each time holds its nodes for days.
    """
    s = ft_launcher(recipe)
    if not s or recipe.cluster.kubernetes is None:
        return
    pods = pod_restarts(recipe)
    total = s.max_restarts * (pods + 1)
    if total > _MOST_RESTARTS:
        report.add(
            "recovery.ft_launcher.max_restarts",
            f"{s.max_restarts} restarts in each of {pods + 1} pods (cluster.kubernetes.pod_restarts) are {total}",
            f"lower one of them: {_MOST_RESTARTS // (pods + 1)} restarts here, for instance",
            also="cluster.kubernetes.pod_restarts",
        )
