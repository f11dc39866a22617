"""How long steps take, by the host's clock, and on a GPU by the device's where nobody looked when a step ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runner.train.metrics import Moment


@dataclass(frozen=True)
class StepTime:
    """What a step took.

    Attributes:
        seconds: its wall time.
        stalled: the part of it spent waiting for checkpoints.
        ago: how long it has been over.
    """

    seconds: float
    stalled: float
    ago: float = 0.0


class StepClock:
    """Times the steps of one life; each begins where the one before it ended.

    Args:
        began: the device's moment at which the first step begins.
    """

    def __init__(self, began: Moment) -> None:
        self._began, self._moment = time.monotonic(), began
        self._stalled = 0.0

    def stalled(self, seconds: float) -> None:
        """Training waited for a checkpoint."""
        self._stalled += seconds

    def ended(self, moment: Moment) -> StepTime:
        """The step is seen to end now, on the device at `moment`."""
        return self._next(moment, 0.0)

    def ended_unseen(self, moment: Moment) -> StepTime:
        """The step has ended at some time: this rank hung afterwards, and did not look. The device's clock tells."""
        took = moment.since(self._moment)
        ago = 0.0 if took is None else max(0.0, time.monotonic() - self._began - took)
        return self._next(moment, ago)

    def _next(self, moment: Moment, ago: float) -> StepTime:
        end = time.monotonic() - ago
        seconds = end - self._began
        time_of_it = StepTime(seconds, min(self._stalled, seconds), ago)
        self._began, self._moment, self._stalled = end, moment, 0.0
        return time_of_it
