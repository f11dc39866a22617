"""`faults`: faults injected on purpose, to see what a run survives and what that costs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import Duration, NonNegativeInt, PositiveInt, Section

FaultType = Literal[
    "exception",  # an exception in the training loop
    "hang",  # Python that sleeps in a loop: interruptible
    "native_hang",  # one blocking call: not interruptible
    "stuck_collective",  # communication that no other rank joins
    "sigkill",
    "sigstop",
    "oom_kill",  # what the kernel's out-of-memory killer does: SIGKILL and its exit code
    "exit_0",
    "exit_1",
    "nan_loss",
    "cuda_error",  # on a GPU an assertion fails and the context is lost; without one, the same exception alone
    "loader_death",  # a data worker of the rank is killed (dataset.workers)
    "loader_hang",  # its data workers freeze (dataset.workers, dataset.worker_timeout)
]

FaultPhase = Literal[
    "start",  # once the ranks have met, before the model is built
    "restore",  # once the state of an earlier life is loaded
    "step",  # between backward and update
    "snapshot",  # once the snapshot of the step is taken
    "save",  # once the save of the step has begun; asynchronous writers are still writing
]


class ScheduledFault(Section):
    """One fault, stated outright."""

    step: PositiveInt
    """The step during which it fires (1 is the first)."""
    rank: NonNegativeInt
    """The rank it hits."""
    type: FaultType
    """What happens."""
    phase: FaultPhase = "step"
    """What the rank is doing at the time. `start` and `restore` come once for each life: the first one is hit,
    whatever `step` says; there is nothing to restore before another fault, or another command, began a second life."""


class FaultsSection(Section):
    """A seeded schedule (`count`, `seed`, `types`) or a stated one (`at`); each fault fires once in a run's life."""

    count: NonNegativeInt = 0
    """Number of faults drawn. They hit distinct steps."""
    seed: NonNegativeInt = 42
    """Seed of the schedule: the same seed gives the same faults everywhere."""
    types: Annotated[tuple[FaultType, ...], Field(strict=False, min_length=1)] = ("exception",)
    """Types to draw from."""
    weights: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)] | None = None
    """Weight of each type. Default: equal."""
    after_step: NonNegativeInt = 0
    """No fault is drawn at or before this step."""
    at: Annotated[tuple[ScheduledFault, ...], Field(strict=False)] = ()
    """Faults stated outright, besides the drawn ones."""
    hang_duration: Duration | None = None
    """How long an injected hang lasts at most. Default: for ever."""
