"""What a recipe costs in memory, storage and time, from its numbers alone.

Device memory is an estimate: exact for parameters, gradients and optimiser state, a model for the rest. Held against
torchtitan's measured peak for Llama-3.1-8B on two H200 (sequence 8192, selective checkpointing, 100.8 GiB) it says
105 GiB, where selective checkpointing is taken to keep half of the activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from runner.recipe.derived import node_shape, processes_per_node, world_size
from runner.recipe.quantity import parse_quantity
from runner.recipe.shape import Shape

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

MIB, GIB = 2**20, 2**30
RUNTIME_BYTES = 2 * GIB  # CUDA context, NCCL buffers, cuBLAS workspaces, fragmentation of the allocator
PROCESS_BYTES = 4 * GIB  # host memory of a rank beside its staging buffers: Python, CUDA libraries, data
PART_BYTES = 2000  # of a checkpoint, around a rank's part of a tensor: torch.save's archive (1.8 KB), its index entries
TENSOR_BYTES = 300  # and for each tensor: DCP's index, the commit record
_WIDTH = {"float32": 4, "bfloat16": 2}


class DeviceMemory(NamedTuple):
    """Bytes on one GPU."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int

    @property
    def certain(self) -> int:
        """What is there whatever the kernels do: parameters, gradients, optimiser state."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """The estimated peak."""
        return self.certain + self.gathered + self.activations + self.logits + RUNTIME_BYTES


def shards(recipe: Recipe, ranks: int) -> int:
    """Over how many ranks a parameter is cut."""
    if recipe.sharding.strategy == "ddp":
        return 1
    if recipe.sharding.strategy == "hsdp":
        return max(1, ranks // recipe.sharding.replicas)
    return ranks


def compute_width(recipe: Recipe) -> int:
    """Bytes of a number in forward and backward."""
    own = getattr(recipe.sharding, "compute_dtype", None)
    return _WIDTH[own] if own else 2 if recipe.training.precision == "bf16" else 4


def device_memory(recipe: Recipe, shape: Shape, ranks: int) -> DeviceMemory:
    """Peak of one rank's GPU."""
    stored, width, cut = _WIDTH[recipe.model.param_dtype], compute_width(recipe), shards(recipe, ranks)
    local = -(-shape.parameters // cut) * stored
    tokens = recipe.training.micro_batch_size * recipe.dataset.sequence_length
    if recipe.sharding.strategy == "ddp":
        gathered = shape.parameters * width if width != stored else 0  # autocast's copies of the weights
    else:
        reduced = _WIDTH[recipe.sharding.reduce_dtype]
        whole = (
            shape.parameters if not recipe.sharding.reshard_after_forward else shape.ends + 2 * shape.block
        )
        gathered = whole * width + shape.ends * width + shape.block * (width + reduced)
    layer = _layer_activations(shape, tokens, width)
    kept = tokens * shape.hidden * width
    activations = shape.layers * layer
    if recipe.model.activation_checkpointing:
        activations = shape.layers * kept + layer
    # logits, their float32 copy, the log-softmax that backward keeps, and its gradient
    logits = tokens * shape.vocab * (width + 12)
    return DeviceMemory(local, local, 2 * local, gathered, activations, logits)


def _layer_activations(shape: Shape, tokens: int, width: int) -> int:
    """What backward keeps of one block: inputs of norms and projections, q, k, v, attention output, the MLP."""
    heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mlp = (4 if shape.gated else 3) * shape.intermediate
    return tokens * width * (6 * shape.hidden + 3 * heads + 4 * keys + mlp)


def checkpoint_bytes(recipe: Recipe, shape: Shape) -> int:
    """Size of one checkpoint: parameters and both moments, stored once whatever the number of ranks, and what lies
    around each rank's part of a tensor. Where the number of ranks is not known, of one."""
    tensors, parts = 3 * shape.tensors, shards(recipe, world_size(recipe) or 1)
    around = tensors * (PART_BYTES * parts + TENSOR_BYTES)
    return 3 * shape.parameters * _WIDTH[recipe.model.param_dtype] + around


def staging_buffers(recipe: Recipe) -> int:
    """Host copies of its shards that a rank keeps: one that is valid and one being filled; with snapshots between
    checkpoints a third, which the asynchronous writer or a worker that is started anew reads meanwhile."""
    checkpoint = recipe.checkpoint
    between = checkpoint.snapshot_every is not None and checkpoint.snapshot_every < checkpoint.every
    read = checkpoint.mode == "async" or recipe.recovery.layer.startswith("ft_launcher")
    return 3 if between and read else 2


def staging_bytes(recipe: Recipe, shape: Shape) -> int | None:
    """Shared memory that the staging buffers of one node's ranks take; None where the ranks are not known."""
    ranks, local_ranks = world_size(recipe), processes_per_node(recipe)
    if ranks is None or local_ranks is None:
        return None
    a_rank = 3 * -(-shape.parameters // shards(recipe, ranks)) * _WIDTH[recipe.model.param_dtype]
    return staging_buffers(recipe) * a_rank * local_ranks


def host_bytes(recipe: Recipe, shape: Shape) -> int | None:
    """Memory of one node: staging buffers and the processes; None where the ranks are not known."""
    staged, local_ranks = staging_bytes(recipe, shape), processes_per_node(recipe)
    if staged is None or local_ranks is None:
        return None
    return staged + local_ranks * (PROCESS_BYTES + recipe.dataset.workers * GIB)


def write_seconds(recipe: Recipe, shape: Shape) -> float | None:
    """Time to write one checkpoint; None where `checkpoint.storage_bandwidth` is not given."""
    bandwidth = recipe.checkpoint.storage_bandwidth
    if not bandwidth:
        return None
    return checkpoint_bytes(recipe, shape) / (bandwidth * recipe.cluster.nodes)


def kept_checkpoints(recipe: Recipe) -> int:
    """Most checkpoints that are on disk at once, the one being written included."""
    checkpoint, steps = recipe.checkpoint, recipe.training.steps
    saved = -(-steps // checkpoint.every)
    milestones = steps // checkpoint.keep_every if checkpoint.keep_every else 0
    return min(saved, checkpoint.keep_last + milestones + 1)


def pod_memory(recipe: Recipe) -> int | None:
    """Memory that a pod (or the node, without one) offers, in bytes; None where the machine is not known."""
    node = node_shape(recipe)
    kubernetes = recipe.cluster.kubernetes
    if kubernetes is not None and kubernetes.resources.memory is not None:
        return int(parse_quantity(kubernetes.resources.memory) or 0)
    if node is None:
        return None
    return node.request_mib * MIB if kubernetes is not None else node.memory_gib * GIB
