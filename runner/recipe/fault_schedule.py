"""The schedule of injected faults: a pure function of the recipe, the same on every machine and Python."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from runner.recipe.faults import FaultPhase, FaultsSection, FaultType


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a run.

    Attributes:
        index: its number in the schedule, which the ledger calls it by.
        step: the step during which it fires (1 is the first).
        rank: the rank it hits.
        type: what happens.
        phase: what the rank is doing at the time.
        name: what it is called in the record of those that have fired. It stays the same where the recipe changes in
            other faults, and that of a drawn fault where the number of ranks does, on which its rank depends.
    """

    index: int
    step: int
    rank: int
    type: FaultType
    phase: FaultPhase = "step"
    name: str = ""


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
    planned = [
        PlannedFault(i, step, rank, kind, name=f"step-{step}-{kind}")
        for i, (step, rank, kind) in enumerate(drawn)
    ]
    met: Counter[str] = Counter()
    for i, stated in enumerate(faults.at, faults.count):
        name = f"step-{stated.step}-{stated.type}-rank-{stated.rank}-{stated.phase}"
        met[name] += 1
        name += f"-{met[name]}" if met[name] > 1 else ""
        planned.append(PlannedFault(i, stated.step, stated.rank, stated.type, stated.phase, name))
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
