"""Ranks whose NVRx monitor process somebody has killed: they are killed, too.

NVRx makes one for each rank, once in the life of its process, and never looks whether it lives. Without it nobody
notices that the rank hangs, and what the rank tells of its own faults is lost. Its peers' monitors miss it after
`heartbeat_timeout` and strike its rank off, although that goes on: restarts fail from then on. A rank that is gone is
what every layer knows how to deal with. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.control.monitors import monitor_of
from runner.control.signs import WorkerSign
from runner.launch.watch.roll import Roll
from runner.system.process import alive


@dataclass(frozen=True)
class Unwatched:
    """A worker that was killed because its monitor had been.

    Attributes:
        sign: the last that the worker said.
        signal: number of the signal that ended the monitor.
    """

    sign: WorkerSign
    signal: int


class UnwatchedWorkers:
    """Looks after the monitors of one node's workers. They are orphans, and so children of this process.

    Args:
        roll: what the workers say.
        control: the node's control folder.
    """

    def __init__(self, roll: Roll, control: Path) -> None:
        self._roll, self._control = roll, control
        self._killed: dict[int, int] = {}  # orphans, by process id: one may be named as a monitor later

    def reaped(self, ended: Mapping[int, int]) -> None:
        """Take in how orphans ended that somebody else has collected."""
        self._killed |= {pid: -status for pid, status in ended.items() if status < 0}

    def monitors(self) -> dict[int, WorkerSign]:
        """By process id, the monitors that workers have named which have not left."""
        named = ((monitor_of(self._control, sign.pid), sign) for sign in self._roll.signs())
        return {monitor: sign for monitor, sign in named if monitor is not None}

    def kill(self) -> list[Unwatched]:
        """Kill the workers at work whose monitor was ended by a signal."""
        killed = []
        for sign in self._roll.at_work():
            monitor = monitor_of(self._control, sign.pid)
            by = self._killed_by(monitor) if monitor is not None else 0
            if by:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sign.pid, signal.SIGKILL)
                    killed.append(Unwatched(sign, by))
        return killed

    def _killed_by(self, monitor: int) -> int:
        """The signal that has ended it, told once; 0 where it lives, has ended by itself, or is no child."""
        reaped = self._killed.pop(monitor, 0)
        if alive(monitor):  # the other one had the same number
            return 0
        if reaped:
            return reaped
        try:
            end = os.waitid(os.P_PID, monitor, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return 0
        return end.si_status if end is not None and end.si_code in (os.CLD_KILLED, os.CLD_DUMPED) else 0
