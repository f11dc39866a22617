"""The supervisor's view of its node's workers: who has signed, who lives, how far they are. Standard library only."""

from __future__ import annotations

import os
import time
from pathlib import Path

from runner.control import farewell
from runner.control.signs import IMPORTS, WorkerSign, read_sign, signs_folder, start_of
from runner.system.process import alive, failing_with, state_of


class Roll:
    """The supervisor's view of its node's workers."""

    def __init__(self, control: Path) -> None:
        self._folder, self._control = signs_folder(control), control
        self.parted: list[WorkerSign] = []  # done, and gone
        self.again_after_all_done = self._was_all_done = False
        self._newest: dict[int, int] = {}  # by place on the node: the worker that signed last
        self.most_restarts = 0
        self.seen_any = False
        self._latest: WorkerSign | None = None  # that has named its life
        self._frozen_since: dict[int, float] = {}
        self._known: set[int] = set()

    def newcomers(self) -> list[WorkerSign]:
        """Workers that have signed since the last call, dead or alive."""
        pids = set(self._listed())
        signs = (read_sign(self._folder, pid) for pid in sorted(pids - self._known))
        new = [sign for sign in signs if sign is not None]
        self._known = (self._known & pids) | {sign.pid for sign in new}
        if new and self.all_done:
            self.again_after_all_done = self._was_all_done = True
        self._newest |= {sign.local_rank: sign.pid for sign in new}
        return new

    def dead(self) -> list[WorkerSign]:
        """Workers that vanished without a word since the last call."""
        dead = []
        for sign in self.signs():
            self.seen_any = self.seen_any or sign.part != IMPORTS
            self.most_restarts = max(self.most_restarts, sign.restart)
            self._latest = sign if sign.attempt else self._latest
            # Who is told of a failure ahead of the end acts on it: the first to fail need not be the first to be gone.
            if not alive(sign.pid) or failing_with(sign.pid) is not None:
                (self._folder / str(sign.pid)).unlink(missing_ok=True)
                if self.is_done(sign):
                    self.parted.append(sign)
                elif sign.part != farewell.LEAVING:
                    dead.append(sign)
        return dead

    def is_done(self, sign: WorkerSign) -> bool:
        """Whether the run is done on this worker's rank, so that its end is no death."""
        return farewell.is_done(self._control, sign.pid)

    @property
    def all_done(self) -> bool:
        """Whether the run is done on all ranks of this node, or was before its launcher started them once more."""
        done = all(farewell.is_done(self._control, pid) for pid in self._newest.values())
        return self._was_all_done or (bool(self._newest) and done)

    def signs(self) -> list[WorkerSign]:
        """What each that has signed, and not left, said last."""
        signs = (read_sign(self._folder, pid) for pid in self._listed())
        return [sign for sign in signs if sign is not None]

    def starting(self) -> list[WorkerSign]:
        """Workers that are in a part of their start-up, or of their end."""
        return [sign for sign in self.signs() if sign.part]

    def at_work(self) -> list[WorkerSign]:
        """Workers that have signed, live, and have not come to their end."""
        return [sign for sign in self.signs() if not _ends(sign) and alive(sign.pid)]

    @property
    def any_done(self) -> bool:
        """Whether the run is done on a rank of this node, in the newest start of its workers."""
        return any(farewell.is_done(self._control, pid) for pid in self._newest.values())

    def latest(self) -> WorkerSign | None:
        """What a worker said last that has named its life, dead or alive; None where none has."""
        for sign in self.signs():
            self._latest = sign if sign.attempt else self._latest
        return self._latest

    def others(self, dead: WorkerSign) -> list[WorkerSign]:
        """Workers that live, of the same start as a dead one."""
        start = dead.restart, start_of(dead.attempt)
        return [sign for sign in self.at_work() if (sign.restart, start_of(sign.attempt)) == start]

    def pids(self) -> set[int]:
        """Those that have signed, and have not come to their end."""
        return {sign.pid for sign in self.signs() if not _ends(sign)}

    def any_lives(self) -> bool:
        """Whether a worker that has signed, and not left, is there."""
        return any(map(alive, self._listed()))

    def frozen(self, longest: float) -> list[WorkerSign]:
        """Workers that have been stopped (SIGSTOP, not by a debugger) for more than `longest` seconds."""
        found, now = [], time.monotonic()
        for sign in self.signs():
            if state_of(sign.pid) != "T":
                self._frozen_since.pop(sign.pid, None)
            elif now - self._frozen_since.setdefault(sign.pid, now) > longest:
                found.append(sign)
        return found

    def _listed(self) -> list[int]:
        return [int(name) for name in os.listdir(self._folder)]  # noqa: PTH208 - names are process ids


def _ends(sign: WorkerSign) -> bool:
    """Whether it has said what it ends with."""
    return sign.part in (farewell.END, farewell.LEAVING)
