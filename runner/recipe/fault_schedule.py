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
        ValueError: the faults are impossible (see `fault_problems`).
    """
    problems = fault_problems(faults, steps=steps, world_size=world_size)
    if problems:
        raise ValueError("; ".join(message for _, message in problems))
    generator = random.Random(faults.seed)
    free = _free_steps(faults, steps)
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


def fault_problems(
    faults: FaultsSection, *, steps: int, world_size: int | None
) -> list[tuple[tuple[str | int, ...], str]]:
    """What is impossible about the faults: (place in the recipe, message) each.

    Args:
        steps: `training.steps`.
        world_size: number of ranks; None where it is not known yet.
    """
    problems: list[tuple[tuple[str | int, ...], str]] = []
    if faults.weights is not None and len(faults.weights) != len(faults.types):
        problems.append(
            (
                ("faults", "weights"),
                f"{len(faults.weights)} weights for {len(faults.types)} types: give one weight a type",
            )
        )
    if len(set(faults.types)) != len(faults.types):
        problems.append((("faults", "types"), "a type is named twice: use `weights` to make it more likely"))
    available = len(_free_steps(faults, steps))
    if faults.count > available:
        problems.append(
            (
                ("faults", "count"),
                f"{faults.count} faults need as many steps, but only {available} are left of {steps} steps after "
                f"`after_step: {faults.after_step}`: lower count or after_step, or raise training.steps",
            )
        )
    for i, stated in enumerate(faults.at):
        if stated.step > steps:
            problems.append(
                (
                    ("faults", "at", i, "step"),
                    f"step {stated.step} is after the last one (training.steps is {steps})",
                )
            )
        if world_size is not None and stated.rank >= world_size:
            problems.append(
                (
                    ("faults", "at", i, "rank"),
                    f"there is no rank {stated.rank}: the run has {world_size}, counted from 0",
                )
            )
        if stated.type == "nan_loss" and stated.phase != "step":
            problems.append((("faults", "at", i, "phase"), "a NaN loss can only happen in phase `step`"))
    if world_size == 1 and (faults.count or faults.at):
        place = ("faults", "count") if faults.count else ("faults", "at")
        problems.append(
            (
                place,
                "faults need at least two ranks: with one, nobody is left to notice a rank that hangs or dies; "
                "raise cluster.processes_per_node or remove the faults",
            )
        )
    return problems


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
