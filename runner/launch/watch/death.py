"""One worker's end without a word, and how it is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from runner.control.signs import WorkerSign
from runner.launch.watch.overdue import Overdue


@dataclass
class Death:
    """One worker's end.

    Attributes:
        sign: the last that it said.
        rank: whose fault it was: the dead one's own, or that of another which hung.
        hung: that rank kept the others waiting until they gave up, or the launcher did; it did not end by itself.
        waited_for_data: that rank hung because a data worker of it gave nothing.
        status: `SIGKILL`, `exit code 1`; empty while, or where, the launcher does not say.
        frozen: it was stopped (SIGSTOP), and so was the rank.
        lasted: seconds from when that rank was stopped to its end; 0 where it is not known.
        overdue: what it hung in, where it was killed because its start took too long.
        unwatched: the signal that ended its NVRx monitor process, where it was killed because of that; else 0.
        consequence: its launcher ended it because of a fault on another node, or it ended with what it hangs on.
    """

    sign: WorkerSign
    seen: float
    said_before: int
    rank: int
    hung: bool
    waited_for_data: bool = False
    status: str = ""
    recorded: bool = False
    frozen: bool = False
    lasted: float = 0.0
    overdue: Overdue | None = None
    unwatched: int = 0
    consequence: bool = False

    def __str__(self) -> str:
        if self.overdue is not None:
            return f"rank {self.rank} hung {self.overdue}, and was killed"
        if self.unwatched:
            by = status_name(-self.unwatched)
            return f"NVRx's monitor process of rank {self.rank} was killed ({by}), which ended the rank"
        if self.frozen:
            return f"rank {self.rank} was frozen (SIGSTOP), and was killed"
        if self.hung:
            why = ", waiting for a data worker," if self.waited_for_data else ","
            return f"rank {self.rank} hung{why} and was stopped"
        return f"rank {self.rank} died" + (f" ({self.status})" if self.status else "")

    @property
    def account(self) -> str:
        """What it was and when, in one line."""
        return f"{self} after step {self.sign.step}"


def status_name(code: int) -> str:
    """How a process ended that returned `code`, negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
