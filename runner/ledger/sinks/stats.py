"""A run's figures so far, kept up event by event, as one node sees them."""

from __future__ import annotations

import time
from collections import Counter, deque

from runner.ledger.codec import Stamp, job_life
from runner.ledger.events import (
    NO_FAULT,
    Event,
    FaultFired,
    FaultSeen,
    LaunchStarted,
    LifeEnded,
    LifeStarted,
    Loaded,
    SaveCommitted,
    SaveFailed,
    SnapshotTaken,
    StepEnded,
    StepsRolled,
    Suspended,
)

_REMEMBERED = 200_000
"""Steps that a restart can still turn from useful into replayed."""
_RATE_STEPS = 20
"""Steps that the token rate is taken over, none of them from before the last restart."""


class LiveStats:
    """Figures of a run so far. The lowest rank of the node speaks for its steps."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last_event = 0.0
        self.step = 0
        self.loss: float | None = None
        self.lr: float | None = None
        self.grad_norm: float | None = None
        self.useful_steps = 0
        self.replayed_steps = 0
        self.useful_seconds = 0.0
        self.replayed_seconds = 0.0
        self.stall_seconds = 0.0
        self.snapshots = 0
        self.saves: Counter[str] = Counter()
        self.last_saved = 0
        self.faults: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.recoveries = 0
        self.recovery_seconds = 0.0
        self.training = False
        self._reference = 1 << 30
        self._life = ""
        self._new_command = False
        self._trouble: float | None = None
        self._kept: deque[tuple[int, int, float]] = deque(
            maxlen=_REMEMBERED
        )  # last step, steps, busy seconds
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RATE_STEPS)  # tokens, busy seconds
        self._suspended = 0.0  # seconds of the step under way

    def consume(self, event: Event, stamp: Stamp) -> None:
        """Take one event of this node."""
        self.first = stamp.t if self.first is None else min(self.first, stamp.t)
        self.last_event = max(self.last_event, stamp.t)
        if isinstance(event, LaunchStarted):
            self._new_command = True
        elif isinstance(event, Suspended):
            self._suspended += event.seconds
        elif isinstance(event, LifeStarted):
            self._suspended = 0.0
            self.first = min(self.first, event.process_started)
            self._life_started(event, stamp)
        elif isinstance(event, FaultFired):
            self.faults[event.type] += 1
            self._trouble = stamp.t if self._trouble is None else self._trouble
        elif isinstance(event, FaultSeen):
            self.training = False
            self._trouble = stamp.t if self._trouble is None else self._trouble
        elif isinstance(event, LifeEnded):
            self.training = False
            if event.reason in NO_FAULT:
                self._trouble = None
        elif isinstance(event, SaveCommitted):
            self.saves["committed"] += 1
            self.last_saved = max(self.last_saved, event.step)
        elif stamp.rank == self._reference:
            self._of_reference(event, stamp)

    def _life_started(self, event: LifeStarted, stamp: Stamp) -> None:
        life = job_life(stamp.life)
        if life == self._life:
            self._reference = min(self._reference, stamp.rank)
            return
        if self._life:
            by = "inprocess" if event.in_process else "command" if self._new_command else "launcher"
            self.restarts[by] += 1
        self._life, self._reference, self._new_command = life, stamp.rank, False
        self._recent.clear()

    def _of_reference(self, event: Event, stamp: Stamp) -> None:
        if isinstance(event, Loaded):
            while self._kept and self._kept[-1][0] > event.step:
                _, steps, busy = self._kept.pop()
                self.useful_steps -= steps
                self.useful_seconds -= busy
                self.replayed_steps += steps
                self.replayed_seconds += busy
            self.step = event.step
        elif isinstance(event, StepEnded):
            self.loss, self.lr, self.grad_norm = event.loss, event.lr, event.grad_norm
            self._recent.append((event.tokens, max(0.0, event.seconds - event.stalled)))
            self._work(event.step, 1, event.seconds, event.stalled, stamp)
        elif isinstance(event, StepsRolled):
            self.snapshots += event.snapshots
            self._work(event.last, event.last - event.first + 1, event.seconds, event.stalled, stamp)
        elif isinstance(event, SnapshotTaken):
            self.snapshots += 1
        elif isinstance(event, SaveFailed):
            self.saves["failed"] += 1

    def _work(self, step: int, steps: int, seconds: float, stalled: float, stamp: Stamp) -> None:
        busy = max(0.0, seconds - stalled - self._suspended)
        self._suspended = 0.0
        self.step = step
        self.training = True
        self.useful_steps += steps
        self.useful_seconds += busy
        self.stall_seconds += stalled
        self._kept.append((step, steps, busy))
        if self._trouble is not None:
            self.recoveries += 1
            self.recovery_seconds += max(0.0, stamp.t - self._trouble)
            self._trouble = None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last steps since the last restart, without stalls."""
        busy = sum(seconds for _, seconds in self._recent)
        return sum(tokens for tokens, _ in self._recent) / busy if busy > 0 else None

    def wall(self, now: float | None = None) -> float:
        """Seconds since the run's first command began."""
        return max(0.0, (time.time() if now is None else now) - self.first) if self.first is not None else 0.0

    def goodput(self, now: float | None = None) -> float | None:
        """Training goodput so far: useful / wall. The report's figure (docs/goodput.md) is the exact one."""
        wall = self.wall(now)
        return min(1.0, self.useful_seconds / wall) if wall > 0 else None
