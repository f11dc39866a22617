"""What follows from a recipe without any machine at hand. Works on `Recipe` and on the quick check's view of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.instances import INSTANCES, Instance, own_shape

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

RUN_PARTS = ("logs", "outcome", "faults", "ledger", "data")  # folders that a run makes in its own


def node_shape(recipe: Recipe) -> Instance | None:
    """The node: `cluster.instance` where given, else the catalogue's entry of `cluster.instance_type`, else None."""
    cluster = recipe.cluster
    if cluster.instance is not None:
        own = cluster.instance
        return own_shape(
            cluster.instance_type or "custom", gpus=own.gpus, gpu_memory=own.gpu_memory, efa=own.efa,
            vcpus=own.vcpus, memory=own.memory, nvme=own.nvme,
        )  # fmt: skip
    return INSTANCES.get(cluster.instance_type) if cluster.instance_type else None


def processes_per_node(recipe: Recipe) -> int | None:
    """Ranks a node; None where only the machine at run time can tell."""
    cluster = recipe.cluster
    if cluster.processes_per_node is not None:
        return cluster.processes_per_node
    shape = node_shape(recipe)
    if shape is not None and cluster.accelerator != "cpu":
        return max(1, shape.gpus)
    return 1 if cluster.accelerator == "cpu" else None


def uses_gpus(recipe: Recipe, *, present: bool) -> bool:
    """Whether the ranks compute on GPUs and talk over NCCL.

    Args:
        present: whether this machine has a GPU; decides where `cluster.accelerator` is `auto`.
    """
    wanted = recipe.cluster.accelerator
    return wanted == "cuda" or (wanted == "auto" and present)


def world_size(recipe: Recipe) -> int | None:
    """Ranks of the run; None where only the machine at run time can tell."""
    each = processes_per_node(recipe)
    return None if each is None else each * recipe.cluster.nodes


# Failed pods a node that the Job puts up with. A layer that mends faults inside the pod needs few. In all layers the
# fault of one pod may cost every pod: the others lose their peer.
_PODS_A_NODE = {"none": 10, "inprocess": 5, "ft_launcher": 3, "ft_launcher+inprocess": 3}


def pod_restarts(recipe: Recipe) -> int:
    """Pods that may fail before the Job does: as given, else by layer and number of nodes."""
    kubernetes = recipe.cluster.kubernetes
    if kubernetes is not None and kubernetes.pod_restarts is not None:
        return kubernetes.pod_restarts
    return _PODS_A_NODE[recipe.recovery.layer] * recipe.cluster.nodes
