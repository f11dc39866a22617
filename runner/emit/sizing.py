"""What a pod asks of its node: devices, CPU, memory, huge pages, /dev/shm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.emit.findings import Finding, ManifestErrors
from runner.recipe.derived import node_shape, processes_per_node
from runner.recipe.estimate import staging_bytes
from runner.recipe.instances import EFA_HUGEPAGES_MIB, GIB, MIB, Instance
from runner.recipe.quantity import parse_quantity
from runner.recipe.shape import model_shape

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe

SHM_PER_DATA_WORKER = GIB
SHM_BASE = 2 * GIB  # NCCL's and torch's own segments
_SHM_SHARE = 0.8  # most of a pod's memory that /dev/shm may be planned to fill


@dataclass(frozen=True)
class PodSize:
    """Resources of one pod; quantities as Kubernetes writes them."""

    gpus: int
    efa: int
    cpu: str
    memory: str
    hugepages_mib: int
    shm_bytes: int
    local_bytes: int


def pod_size(recipe: Recipe, kubernetes: KubernetesSection) -> PodSize:
    """The resources of one pod.

    Raises:
        ManifestErrors: no instance type, or a /dev/shm that the memory cannot hold.
    """
    shape = node_shape(recipe)
    if shape is None:
        raise ManifestErrors(
            [Finding("cluster.instance_type", "a manifest needs to know the nodes: name an instance type")]
        )
    cluster = recipe.cluster
    gpus = 0 if cluster.accelerator == "cpu" else min(processes_per_node(recipe) or 0, shape.gpus)
    efa = kubernetes.efa if kubernetes.efa is not None else (shape.efa if cluster.nodes > 1 and gpus else 0)
    memory = kubernetes.resources.memory or f"{shape.request_mib // 1024}Gi"
    memory_bytes = int(parse_quantity(memory) or 0)
    return PodSize(
        gpus=gpus,
        efa=efa,
        cpu=kubernetes.resources.cpu or _cpu(shape),
        memory=memory,
        hugepages_mib=EFA_HUGEPAGES_MIB if efa else 0,
        shm_bytes=_shm(recipe, kubernetes, memory_bytes),
        local_bytes=kubernetes.local_storage.size if kubernetes.local_storage else 0,
    )


def _cpu(shape: Instance) -> str:
    cores, rest = divmod(shape.request_millicpu, 1000)
    return f"{shape.request_millicpu}m" if rest else str(cores)


def _shm(recipe: Recipe, kubernetes: KubernetesSection, memory: int) -> int:
    """Size of /dev/shm: as given; else from the model's size; else half of the memory, as Linux itself does."""
    if kubernetes.shm_size is not None:
        size = kubernetes.shm_size
        if size > memory:
            raise ManifestErrors(
                [
                    Finding(
                        "cluster.kubernetes.shm_size", f"{size} bytes exceed the pod's memory, {memory} bytes"
                    )
                ]
            )
        return size
    ranks = processes_per_node(recipe) or 1
    workers = recipe.dataset.workers * ranks * SHM_PER_DATA_WORKER
    shape = model_shape(recipe)
    staging = staging_bytes(recipe, shape) if shape is not None else None
    size = memory // 2 + workers if staging is None else SHM_BASE + staging * 5 // 4 + workers
    if staging is None:
        size = min(size, int(memory * _SHM_SHARE))
    if max(size, workers) > memory * _SHM_SHARE:
        raise ManifestErrors(
            [
                Finding(
                    "cluster.kubernetes.shm_size",
                    f"snapshots and data workers need about {size // GIB} GiB of /dev/shm, too much of the pod's "
                    f"{memory // GIB} GiB; use more nodes, fewer dataset.workers or a larger instance",
                )
            ]
        )
    return -(-size // MIB) * MIB
