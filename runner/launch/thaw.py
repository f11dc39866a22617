"""Processes beside the workers that somebody has stopped (SIGSTOP): they are woken.

A worker that is stopped is its recovery layer's to end. Nobody looks after the others: a stopped launcher restarts
nothing, a stopped fork server tells of no end, a stopped client hides that of its worker, and a rank whose monitor is
stopped can hang for ever. Nor does anybody look after a rank's checkpoint writer: training goes on, and no save does.
Its data workers have a limit of their own (`dataset.worker_timeout`) and are left to it. What a debugger has stopped is
in another state and left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping

from runner.control.signs import WorkerSign
from runner.launch.printing import say
from runner.recipe.recovery import InprocessSettings
from runner.system.process import DATA_WORKER, children_by_parent, process_name, state_of

LOOK_EVERY = 0.5  # seconds
LOOKS = 10  # that find a process stopped before it is woken: whoever stops a whole run takes a moment for it


class Frozen:
    """Wakes processes that are found stopped at so many looks in a row. Looks are counted, not seconds: who looks may
    have been stopped as well, together with them.

    Args:
        looks: how many.
    """

    def __init__(self, looks: int = LOOKS) -> None:
        self._enough = looks
        self._looks: dict[int, int] = {}

    def wake(self, pids: Iterable[int]) -> list[int]:
        """Look at these processes once; returns those that were woken."""
        stopped = [pid for pid in pids if state_of(pid) == "T"]
        self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in stopped}
        woken = [pid for pid in stopped if self._looks[pid] >= self._enough]
        for pid in woken:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return woken


class Thaw:
    """Wakes what somebody has stopped of a launch, and says so.

    Args:
        inprocess: in-process restart's settings; None where the layer has none. A rank whose NVRx monitor process is
            silent for `heartbeat_timeout` is struck off by those of its peers, so that one is woken well before.
    """

    def __init__(self, inprocess: InprocessSettings | None) -> None:
        missed = inprocess.heartbeat_timeout.total_seconds() if inprocess is not None else 0.0
        self._beside = Frozen()
        self._monitors = Frozen(max(1, min(LOOKS, int(missed / 2 / LOOK_EVERY))))

    def look(
        self, parent: int, starters: Iterable[int], workers: set[int], monitors: Mapping[int, WorkerSign]
    ) -> None:
        """Look once; to be called every `LOOK_EVERY` seconds.

        Args:
            parent: the process that the user started.
            starters, workers: as `beside_workers`.
            monitors: NVRx's monitor processes, and whose they are.
        """
        for pid in self._monitors.wake(monitors):
            whose = f"NVRx's monitor process of rank {monitors[pid].rank} (process {pid})"
            say(f"{whose} was stopped (SIGSTOP) and is woken")
        for pid in self._beside.wake([parent, *beside_workers(starters, workers | set(monitors))]):
            say(f"process {pid} ({process_name(pid)}) was stopped (SIGSTOP) and is woken")


def beside_workers(starters: Iterable[int], workers: set[int]) -> list[int]:
    """All that serves a launch and is no worker at work: children of this process and of those that start workers.

    NVRx's monitors of the ranks are among the former: they are orphans from the start. And what workers have started,
    but for data workers.

    Args:
        starters: the launcher and the fork server.
        workers: those that have signed and not left; before and after that their layer does not know them.
    """
    table = children_by_parent()
    beside = [
        pid for parent in (os.getpid(), *starters) for pid in table.get(parent, ()) if pid not in workers
    ]
    started = [pid for worker in workers for pid in table.get(worker, ())]
    return beside + [pid for pid in started if process_name(pid) != DATA_WORKER]
