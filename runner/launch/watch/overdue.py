"""Workers that take too long to start, or to end: which of them hang, and killing those.

A rank that hangs before its first step sends no sign of life that a recovery layer would miss, and its peers wait for
it in one place or another, some of them for many minutes. The worker itself notices first (`recovery/start_watch.py`)
and can often start again in place; what cannot answer any more, because it is stopped, stuck in native code or not
yet done with its imports, is killed here. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from runner.control.farewell import END, LEAVING
from runner.control.signs import IMPORTS, WorkerSign, setting_of, stacks_file
from runner.control.silence import Silent
from runner.launch.watch.roll import Roll

_GRACE = 5.0  # seconds left to the worker itself
LONGEST_LOOK = (
    0.5  # seconds that count between two looks: what stopped this process may have stopped the worker
)


@dataclass(frozen=True)
class Overdue:
    """A worker that was killed because it hung while it started, or in its own end.

    Attributes:
        sign: the last that it said.
        stacks: of its threads; empty where it was frozen, or where nothing made it write them.
        behind: seconds for which another rank had been done, where it was not and should have been; else 0.
        stopped: whether it had been stopped (SIGSTOP) then.
    """

    sign: WorkerSign
    stacks: str
    behind: float = 0.0
    stopped: bool = False

    @property
    def leaves(self) -> bool:
        """Whether it had said what it ended with."""
        return self.sign.part in (END, LEAVING)

    def __str__(self) -> str:
        if self.behind:
            frozen = ", frozen (SIGSTOP)" if self.stopped else ""
            return f"at the end of the run{frozen}: another rank had been done for {self.behind:g} s"
        if self.leaves:
            frozen = "" if self.stacks else ", frozen"
            return f"in its own end: not gone after {self.sign.longest:g} s (recovery.start_timeout){frozen}"
        return (
            f"in start-up ({self.sign.part}): not done after {self.sign.longest:g} s ({setting_of(self.sign.part)})"
            + ("" if self.stacks else ", frozen")
        )


class OverdueWorkers:
    """Looks after the workers of one node while they start, and while they end.

    Args:
        roll: what they say.
        control: folder in which they leave their stacks.
        grace: seconds left to the worker itself.
    """

    def __init__(self, roll: Roll, control: Path, grace: float = _GRACE) -> None:
        self._roll, self._control, self._grace = roll, control, grace
        self._overdue_for: dict[
            tuple[int, str, float], float
        ] = {}  # a worker's part of start-up -> seconds seen
        self._killed: set[tuple[int, str, float]] = set()  # not all of them are gone at once
        self._looked = 0.0

    def kill(self, now: float) -> list[Overdue]:
        """Kill the workers that hang.

        Those that wait for another rank are left alone: that one is to blame, on whichever node it is, and what they
        do has a limit of its own.

        Args:
            now: monotonic clock.
        """
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        seen, killed = {}, []
        for sign in self._roll.starting():
            if now - sign.since <= sign.longest:
                continue
            key = (sign.pid, sign.part, sign.since)
            seen[key] = self._overdue_for.get(key, 0.0) + passed
            if seen[key] <= self._grace or key in self._killed:
                continue
            stacks = _last_stacks(stacks_file(self._control, sign.pid))
            # Where others wait for a rank's end, they have been in their own for as long.
            if sign.part not in (IMPORTS, END, LEAVING) and Silent(sign.rank, stacks).waited:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(sign.pid, signal.SIGKILL)
                self._killed.add(key)
                killed.append(Overdue(sign, stacks))
        self._overdue_for = seen
        return killed


def _last_stacks(path: Path) -> str:
    """What the alarm wrote last: it goes off again and again."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return re.split(r"^Timeout \(.*\)!$", text, flags=re.MULTILINE)[-1].strip()
