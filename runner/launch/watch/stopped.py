"""Ranks that somebody has stopped (SIGSTOP), as seen from outside: whose fault a silence is, and since when it lasts.

All ranks are silent while one is stopped, and NVRx wakes a rank before it kills it: what a rank does or writes in that
moment, a step that it was in the middle of or stacks that wait for its peers, looks as if it had been alive all along.
The state that the kernel had for it until then does not. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.control.signs import WorkerSign, start_of
from runner.control.silence import mark_frozen, take_mark_back
from runner.system.process import state_of

_MOMENT = 5.0  # seconds from when a rank is woken to be killed until all of that is seen


@dataclass
class Stop:
    """A time in which a worker was stopped, wall clock.

    Attributes:
        sign: the last that the worker had said.
        since: when it was first seen to be stopped.
        until: when it was last.
        over: whether it was seen awake since.
        marked: whether its file for stacks says so.
    """

    sign: WorkerSign
    since: float
    until: float
    over: bool = False
    marked: bool = False


class StoppedWorkers:
    """Looks at the workers of one node.

    Args:
        control: the node's control folder.
        least: seconds that a rank must have been stopped for to be the reason of a silence.
    """

    def __init__(self, control: Path, least: float) -> None:
        self._control, self._least = control, least
        self._stops: dict[int, Stop] = {}  # by process id: the last of each

    def look(self, signs: Iterable[WorkerSign], now: float) -> None:
        """Take in who is stopped.

        Args:
            signs: of the workers that have signed.
            now: wall clock, seconds.
        """
        for sign in signs:
            stop = self._stops.get(sign.pid)
            if state_of(sign.pid) == "T":
                if stop is None or stop.over:
                    stop = self._stops[sign.pid] = Stop(sign, now, now)
                stop.sign, stop.until = sign, now
                if not stop.marked and now - stop.since >= self._least:
                    stop.marked = True
                    mark_frozen(self._control, sign.pid, stop.since)
            elif stop is not None:
                stop.over = True
                if now - stop.until > _MOMENT:  # it was woken, and lives
                    del self._stops[sign.pid]
                    if stop.marked:
                        take_mark_back(self._control, sign.pid)

    def to_blame(self, dead: WorkerSign, seen: float) -> Stop | None:
        """The stop, of a worker or its peers of the same start, that its death ended; the longest.

        Args:
            dead: the worker.
            seen: when its death was seen, wall clock.
        """
        found = [
            stop
            for stop in self._stops.values()
            if (stop.sign.restart, start_of(stop.sign.attempt)) == (dead.restart, start_of(dead.attempt))
            and stop.until - stop.since >= self._least
            and seen - stop.until <= _MOMENT
        ]
        return max(found, key=lambda stop: stop.until - stop.since, default=None)
