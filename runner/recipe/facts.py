"""`Facts`: what follows from one recipe, computed once and shared by the rules and `--explain`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from runner.recipe import estimate
from runner.recipe.derived import node_shape, processes_per_node, world_size
from runner.recipe.instances import Instance
from runner.recipe.shape import Shape, ShapeError, model_shape

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

MFU = 0.35  # share of the GPU's peak that a step is assumed to reach, for times that nobody has measured yet
_PEAK = {  # dense bfloat16 FLOP/s
    "A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "B300": 2250e12,
    "A10G": 70e12, "L4": 121e12, "L40S": 362e12,
}  # fmt: skip
_FLOAT32_SLOWDOWN = 8


class Facts:
    """None stands for what cannot be known from the recipe: ranks of an unnamed machine, the shape of a model that
    only a download would tell, the speed of storage that nobody stated."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @cached_property
    def ranks(self) -> int | None:
        """World size."""
        return world_size(self.recipe)

    @cached_property
    def local_ranks(self) -> int | None:
        """Ranks a node."""
        return processes_per_node(self.recipe)

    @cached_property
    def node(self) -> Instance | None:
        """The node's shape."""
        return node_shape(self.recipe)

    @cached_property
    def on_gpus(self) -> bool | None:
        """Whether the run uses GPUs."""
        accelerator = self.recipe.cluster.accelerator
        if accelerator != "auto":
            return accelerator == "cuda"
        return None if self.node is None else self.node.gpus > 0

    @cached_property
    def shape(self) -> Shape | None:
        """The model in numbers."""
        return None if self.shape_error else self._shape[0]

    @cached_property
    def shape_error(self) -> ShapeError | None:
        """Why the model's configuration describes no model."""
        return self._shape[1]

    @cached_property
    def _shape(self) -> tuple[Shape | None, ShapeError | None]:
        try:
            return model_shape(self.recipe), None
        except ShapeError as error:
            return None, error

    @cached_property
    def device_memory(self) -> estimate.DeviceMemory | None:
        """Estimated peak of one GPU."""
        if self.shape is None or self.ranks is None:
            return None
        return estimate.device_memory(self.recipe, self.shape, self.ranks)

    @cached_property
    def gpu_bytes(self) -> int | None:
        """Memory of one GPU."""
        if self.node is None or self.on_gpus is False or not self.node.gpu_memory_gib:
            return None
        return self.node.gpu_memory_gib * estimate.GIB

    @cached_property
    def checkpoint_bytes(self) -> int | None:
        """Size of one checkpoint."""
        return estimate.checkpoint_bytes(self.recipe, self.shape) if self.shape else None

    @cached_property
    def staging_bytes(self) -> int | None:
        """Shared memory for the staging buffers of one node."""
        return estimate.staging_bytes(self.recipe, self.shape) if self.shape else None

    @cached_property
    def host_bytes(self) -> int | None:
        """Host memory that one node's ranks need."""
        return estimate.host_bytes(self.recipe, self.shape) if self.shape else None

    @cached_property
    def pod_bytes(self) -> int | None:
        """Host memory that one pod (or node) offers."""
        return estimate.pod_memory(self.recipe)

    @cached_property
    def write_seconds(self) -> float | None:
        """Time to write one checkpoint."""
        return estimate.write_seconds(self.recipe, self.shape) if self.shape else None

    @cached_property
    def step_seconds(self) -> float | None:
        """Time of a step at `MFU` of the GPUs' peak; recomputed activations cost a third more."""
        peak = _PEAK.get(self.node.gpu) if self.node and self.on_gpus else None
        if peak is None or self.shape is None or self.ranks is None:
            return None
        training = self.recipe.training
        tokens = training.global_batch_size * self.recipe.dataset.sequence_length
        work = (8 if self.recipe.model.activation_checkpointing else 6) * self.shape.parameters * tokens
        slow = 1 if estimate.compute_width(self.recipe) == 2 else _FLOAT32_SLOWDOWN
        return work * slow / (self.ranks * peak * MFU)

    @cached_property
    def faults(self) -> int:
        """Faults of the run, drawn and stated."""
        return self.recipe.faults.count + len(self.recipe.faults.at)

    @cached_property
    def fault_types(self) -> frozenset[str]:
        """Types of fault that the run may meet."""
        faults = self.recipe.faults
        drawn = set(faults.types) if faults.count else set()
        return frozenset(drawn | {fault.type for fault in faults.at})
