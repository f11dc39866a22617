"""What a pod asks of its node: devices, CPU, memory, huge pages, /dev/shm."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.emit.findings import Finding, ManifestErrors
from runner.recipe.derived import node_shape, processes_per_node
from runner.recipe.instances import EFA_HUGEPAGES_MIB, GIB, MIB, Instance
from runner.recipe.kubernetes import KubernetesSection
from runner.recipe.quantity import parse_quantity
from runner.recipe.recipe import Recipe

STAGING_BUFFERS = 3  # two that snapshots alternate between, one that the writer reads
SHM_PER_DATA_WORKER = GIB
SHM_BASE = 2 * GIB  # NCCL's and torch's own segments
_SHM_SHARE = 0.8  # most of a pod's memory that /dev/shm may be planned to fill
_BILLIONS = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)


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
    staging = staging_bytes(recipe, ranks)
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


def staging_bytes(recipe: Recipe, ranks: int) -> int | None:
    """Host memory that the snapshots of one node take at most; None where the model's size is not known."""
    parameters = estimated_parameters(recipe)
    if parameters is None:
        return None
    state = parameters * 3 * (2 if recipe.model.param_dtype == "bfloat16" else 4)
    world = ranks * recipe.cluster.nodes
    sharding = recipe.sharding
    copies = {"ddp": world, "fsdp": 1, "hsdp": getattr(sharding, "replicas", 1)}[sharding.strategy]
    return state * copies * ranks // world * STAGING_BUFFERS


def estimated_parameters(recipe: Recipe) -> int | None:
    """Parameters of the model, rounded up: from its architecture, else from a name such as `Llama-3.1-8B`."""
    shape = recipe.model.architecture or {}
    hidden, layers = shape.get("hidden_size"), shape.get("num_hidden_layers")
    if isinstance(hidden, int) and isinstance(layers, int):
        inner = shape.get("intermediate_size") or 4 * hidden
        vocabulary = shape.get("vocab_size") or 150_000
        experts = shape.get("num_local_experts") or shape.get("num_experts") or 1
        return int(layers * (4 * hidden * hidden + 3 * hidden * inner * experts) + 2 * vocabulary * hidden)
    match = _BILLIONS.search(recipe.model.name.rsplit("/", 1)[-1]) if recipe.model.name else None
    if not match:
        return None
    return int(float(match[2]) * int(match[1] or 1) * 1.1e9)
