"""A run with random faults, simulated step by step in closed form: minutes of a month in milliseconds.

Faults come with exponential gaps, at any moment, recovery included. Between two faults training advances
deterministically: a step takes `costs.step`; after each `snapshot_every`-th step of the run training waits for
a snapshot, after each `every`-th for a save, which counts once its write has ended.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from runner.ledger.interval import Costs, FaultRates


@dataclass(frozen=True)
class Simulated:
    """What came out: steps done of the goal, wall time (seconds), faults, and the share of useful time."""

    steps: int
    wall: float
    faults: int
    goodput: float


def simulate(
    costs: Costs,
    rates: FaultRates,
    *,
    every: int,
    snapshot_every: int | None,
    steps: int,
    seed: int = 0,
    give_up_after: float = 100.0,
) -> Simulated:
    """Run `steps` steps through random faults.

    Args:
        give_up_after: multiple of the undisturbed time after which the run stops where it stands, so that a
            run that cannot advance ends.
    """
    source = random.Random(seed)
    rate = 1 / rates.soft + 1 / rates.hard
    soft_share = (1 / rates.soft) / rate if rate else 0.0
    limit = give_up_after * steps * costs.step
    wall, done, faults = 0.0, 0, 0
    recovery = 0.0
    while done < steps and wall < limit:
        life = _Life(costs, every, snapshot_every, done)
        to_fault = source.expovariate(rate) if rate else float("inf")
        to_end = recovery + life.time_at(steps)
        if to_end <= to_fault:
            wall, done = wall + to_end, steps
            break
        wall += to_fault
        faults += 1
        soft = source.random() < soft_share
        training = to_fault - recovery
        if training > 0:
            done = life.kept(training, soft)
        recovery = costs.soft_recovery if soft else costs.hard_recovery
    useful = done * costs.step
    return Simulated(done, wall, faults, useful / wall if wall else 0.0)


class _Life:
    """Training from step `start` on, until a fault."""

    def __init__(self, costs: Costs, every: int, snapshot_every: int | None, start: int) -> None:
        self.costs, self.every, self.start = costs, every, start
        self.snapshot_every = snapshot_every

    def time_at(self, step: int) -> float:
        """Seconds of this life at which `step` is done and its snapshot and save have been waited for."""
        c = self.costs
        time = (step - self.start) * c.step
        time += (step // self.every - self.start // self.every) * c.save
        if self.snapshot_every:
            k = self.snapshot_every
            time += (step // k - self.start // k) * c.snapshot
        return time

    def _step_at(self, time: float) -> int:
        """The last step that is done at `time`."""
        low, high = self.start, self.start + int(time / self.costs.step) + 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.time_at(middle) <= time:
                low = middle
            else:
                high = middle - 1
        return low

    def kept(self, time: float, soft: bool) -> int:
        """The step from which training goes on after a fault at `time`."""
        kept = self.start  # what this life resumed from is still there
        committed = self._step_at(time - self.costs.write) if time > self.costs.write else self.start
        kept = max(kept, committed // self.every * self.every)
        if soft and self.snapshot_every:
            kept = max(kept, self._step_at(time) // self.snapshot_every * self.snapshot_every)
        return kept
