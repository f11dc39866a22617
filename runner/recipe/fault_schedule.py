"""The schedule of injected faults: a pure function of the recipe, the same on every machine and Python."""

from __future__ import annotations

import random
from dataclasses import dataclass

from runner.recipe.faults import FaultPhase, FaultsSection, FaultType


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a run.

    Attributes:
        index: names the fault; what has fired is recorded under it.
        step: the step during which it fires (1 is the first).
        rank: the rank it hits.
        type: what happens.
        phase: what the rank is doing at the time.
    """

    index: int
    step: int
    rank: int
    type: FaultType
    phase: FaultPhase = "step"


def fault_schedule(faults: FaultsSection, *, steps: int, world_size: int) -> tuple[PlannedFault, ...]:
    """All faults of a run, by step.

    Drawn faults hit distinct steps after `after_step`, none that a stated fault has; every rank is as likely as any
    other, rank 0 included. Only `random.Random.random` is used, whose sequence Python guarantees for a seed.

    Raises:
        ValueError: more faults than steps that can take one; the rules for recipes refuse that.
    """
    generator = random.Random(faults.seed)
    free = _free_steps(faults, steps)
    if faults.count > len(free):
        raise ValueError(f"{faults.count} faults need as many steps, and only {len(free)} can take one")
    drawn = []
    for _ in range(faults.count):
        step = free.pop(int(generator.random() * len(free)))
        rank = int(generator.random() * world_size)
        drawn.append((step, rank, _choose(faults, generator.random())))
    drawn.sort()
    planned = [PlannedFault(i, *fault) for i, fault in enumerate(drawn)]
    planned += [
        PlannedFault(faults.count + i, stated.step, stated.rank, stated.type, stated.phase)
        for i, stated in enumerate(faults.at)
    ]
    return tuple(sorted(planned, key=lambda fault: (fault.step, fault.index)))


def _free_steps(faults: FaultsSection, steps: int) -> list[int]:
    stated = {fault.step for fault in faults.at}
    return [step for step in range(faults.after_step + 1, steps + 1) if step not in stated]


def _choose(faults: FaultsSection, draw: float) -> FaultType:
    weights = faults.weights or (1.0,) * len(faults.types)
    left = draw * sum(weights)
    for kind, weight in zip(faults.types, weights, strict=True):
        left -= weight
        if left < 0:
            return kind
    return faults.types[-1]
