"""`training`: steps, batches, optimiser, schedule, precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import NonNegativeInt, PositiveInt, Section


class OptimizerSettings(Section):
    """AdamW."""

    name: Literal["adamw"] = "adamw"
    """The optimiser."""
    lr: Annotated[float, Field(gt=0, lt=10)] = 3e-4
    """Peak learning rate."""
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], Field(strict=False)
    ] = (0.9, 0.95)
    """Decay of the moving averages of the gradient and of its square."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Decoupled weight decay."""
    fused: bool | None = None
    """Use the fused kernel. Default: on GPUs."""


class ScheduleSettings(Section):
    """Learning rate over the run: warm-up from zero, then the curve down to `min_lr_ratio` of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    """The curve after the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end, as a share of the peak."""
    decay_steps: PositiveInt | None = None
    """Step at which the curve ends. Default: `training.steps`. Set it where a run will be prolonged later: the
    curve must not change between lives of a run."""


class TrainingSection(Section):
    """The optimisation itself. One step consumes `global_batch_size` sequences, whatever the number of ranks."""

    steps: PositiveInt
    """Optimiser steps of the whole run."""
    global_batch_size: PositiveInt
    """Sequences a step over all ranks. A multiple of `micro_batch_size` x ranks."""
    micro_batch_size: PositiveInt = 1
    """Sequences a rank processes at once; gradients accumulate until the global batch is done."""
    seed: NonNegativeInt = 0
    """Seed of weights, data order and dropout. Each is a function of the seed and the step alone."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Optimiser settings."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Learning-rate schedule."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient; `null` turns clipping off."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Format of forward and backward. Gradients are summed in `sharding.reduce_dtype`."""
    deterministic: bool = False
    """Deterministic kernels on GPUs: bit-identical runs for some speed. CPU runs are deterministic anyway."""
    log_every: PositiveInt = 1
    """Steps between log lines. The ledger holds every step."""

    @property
    def decay_steps(self) -> int:
        """Step at which the schedule's curve ends."""
        return self.schedule.decay_steps or self.steps
