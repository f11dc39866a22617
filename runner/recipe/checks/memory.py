"""R4xx: memory of GPUs and hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.estimate import GIB, RUNTIME_BYTES
from runner.recipe.units import format_size

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_FULL = 0.92  # the allocator needs some room, and the estimate has an error of a few percent
_SMALLEST_SHM = 64 * 2**20


@rule("R401")
def state_fits_gpu(recipe: Recipe, report: Report) -> None:
    """Parameters, gradients and optimiser state of a rank must fit its GPU.

    These are exact: no kernel makes them smaller.
    """
    memory, gpu = report.facts.device_memory, report.facts.gpu_bytes
    if memory is None or gpu is None:
        return
    needed = memory.certain + RUNTIME_BYTES
    if needed > gpu:
        report.add(
            "cluster.instance_type" if recipe.cluster.instance is None else "cluster.instance.gpu_memory",
            f"a GPU has {format_size(gpu)} and needs {format_size(needed)} for parameters, gradients, optimiser state "
            "and the CUDA runtime alone",
            _smaller(recipe),
        )


@rule("R402", "warning")
def step_fits_gpu(recipe: Recipe, report: Report) -> None:
    """The estimated peak of a step should leave 8 % of the GPU free.

    The estimate counts parameters, gradients, optimiser state, gathered weights, activations and logits. The state is
    exact; the rest was 4 % too high for the one run that it was held against (runner/recipe/estimate.py).
    """
    memory, gpu = report.facts.device_memory, report.facts.gpu_bytes
    if memory is None or gpu is None or memory.certain + RUNTIME_BYTES > gpu or memory.total <= _FULL * gpu:
        return
    parts = {
        "state": memory.certain, "gathered weights": memory.gathered, "activations": memory.activations,
        "logits": memory.logits,
    }  # fmt: skip
    shares = ", ".join(f"{name} {format_size(size)}" for name, size in parts.items())
    report.add(
        "training.micro_batch_size",
        f"a step probably needs {format_size(memory.total)} of the GPU's {format_size(gpu)} ({shares})",
        _leaner(recipe),
    )


def _smaller(recipe: Recipe) -> str:
    if recipe.sharding.strategy == "ddp":
        return "use `sharding.strategy: fsdp`, which shares them among the ranks"
    if recipe.sharding.strategy == "hsdp" and recipe.sharding.replicas > 1:
        return "use fewer sharding.replicas"
    return "use more nodes, GPUs with more memory, or a smaller model"


def _leaner(recipe: Recipe) -> str:
    if not recipe.model.activation_checkpointing:
        return "set `model.activation_checkpointing: true`"
    if recipe.training.micro_batch_size > 1:
        return "use a smaller micro batch"
    return "use a shorter dataset.sequence_length, more nodes, or GPUs with more memory"


@rule("R403")
def staging_fits_host(recipe: Recipe, report: Report) -> None:
    """The staging buffers of a node's ranks, and their processes, must fit the pod's memory.

    Each rank keeps two or three copies of its shards in host memory: snapshots, and what the asynchronous writer reads.
    """
    needed, offered = report.facts.host_bytes, report.facts.pod_bytes
    if needed is None or offered is None or needed <= offered:
        return
    kubernetes = recipe.cluster.kubernetes
    limited = kubernetes is not None and kubernetes.resources.memory is not None
    report.add(
        "cluster.kubernetes.resources.memory" if limited else "cluster.instance_type",
        f"{'the pod' if kubernetes else 'the node'} has {format_size(offered)} of memory and the run needs about "
        f"{format_size(needed)}, {format_size(report.facts.staging_bytes or 0)} of it staging buffers",
        "raise the limit" if limited else "use more nodes, or an instance with more memory",
        also="checkpoint.snapshot_every",
    )


@rule("R404")
def staging_fits_shm(recipe: Recipe, report: Report) -> None:
    """`cluster.kubernetes.shm_size` must hold the staging buffers, and 1 GiB for each data worker."""
    kubernetes, staged = recipe.cluster.kubernetes, report.facts.staging_bytes
    if kubernetes is None or kubernetes.shm_size is None or staged is None:
        return
    workers = recipe.dataset.workers * (report.facts.local_ranks or 1)
    needed = staged + workers * GIB
    if kubernetes.shm_size < needed:
        report.add(
            "cluster.kubernetes.shm_size",
            f"/dev/shm of {format_size(kubernetes.shm_size)} cannot hold {format_size(staged)} of staging buffers"
            + (f" and {workers} data workers" if workers else ""),
            f"leave it out, or use at least {-(-needed // GIB)}GiB",
        )


@rule("R405")
def shm_fits_pod(recipe: Recipe, report: Report) -> None:
    """`cluster.kubernetes.shm_size` must be below the pod's memory: what is written there counts toward it."""
    kubernetes, offered = recipe.cluster.kubernetes, report.facts.pod_bytes
    if kubernetes is None or kubernetes.shm_size is None or offered is None:
        return
    if kubernetes.shm_size >= offered:
        report.add(
            "cluster.kubernetes.shm_size",
            f"{format_size(kubernetes.shm_size)} is not below the pod's memory of {format_size(offered)}",
            "use less, or raise cluster.kubernetes.resources.memory",
        )
    elif kubernetes.shm_size < _SMALLEST_SHM:
        report.add(
            "cluster.kubernetes.shm_size",
            f"{format_size(kubernetes.shm_size)} is less than a container has anyway",
            "leave it out, or use 64MiB or more",
        )


@rule("R406", "warning")
def workers_fit_cpus(recipe: Recipe, report: Report) -> None:
    """Data workers and ranks of a node should not be more than its CPUs."""
    node, ranks = report.facts.node, report.facts.local_ranks
    if node is None or ranks is None or not recipe.dataset.workers:
        return
    processes = ranks * (1 + recipe.dataset.workers)
    if processes > node.vcpus:
        report.add(
            "dataset.workers",
            f"{ranks} ranks with {recipe.dataset.workers} data workers each are {processes} processes on {node.vcpus} "
            "CPUs",
            f"use at most {max(0, node.vcpus // ranks - 1)}",
        )
