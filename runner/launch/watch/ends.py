"""Workers that have said what they ended with, and then hang or crash: nobody waits for them, and the result stands."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from runner.control import farewell
from runner.control.farewell import LEAVING, PARTING
from runner.control.signs import start_of
from runner.control.silence import Silent
from runner.faults.records import FaultRecord, write_record
from runner.launch.forkserver import how_ended
from runner.launch.printing import say
from runner.launch.watch.death import status_name
from runner.launch.watch.overdue import LONGEST_LOOK, Overdue
from runner.launch.watch.roll import Roll
from runner.system.process import LONGEST_KILL, alive

_ASK_EVERY = 1.0  # seconds


class Ends:
    """How the workers of one launch on this node leave.

    Args:
        roll: what they say.
        control: the node's control folder.
        run_folder: where records of those that hang go.
        layer: name of the recovery layer.
        longest: seconds that a rank may take for its own end.
        frozen: seconds after which a rank that is stopped is not waited for, once another is done.
        alone: whether there is no other node.
    """

    def __init__(
        self,
        roll: Roll,
        control: Path,
        run_folder: Path,
        layer: str,
        longest: float,
        *,
        frozen: float,
        alone: bool,
    ) -> None:
        self._roll, self._control, self._folder, self._layer = roll, control, run_folder, layer
        self._killed: dict[int, float] = {}  # process id -> monotonic clock
        self._bound = PARTING + longest
        self._frozen, self._alone = frozen, alone
        self._waited = self._looked = self._asked = 0.0
        self._told = self._done_elsewhere = ""  # starts of the workers

    def behind(self, now: float) -> list[Overdue]:
        """Kill the ranks that are not done although another has been for long.

        One that is frozen, or stuck, after all others have parted from it is missed by nobody where no layer watches.

        Args:
            now: monotonic clock.
        """
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        if not self._another_done(now):
            self._waited = 0.0
            return []
        self._waited += passed
        stopped = {sign.pid for sign in self._roll.frozen(self._frozen)}
        late = []
        for sign in self._roll.at_work():
            bound = min(self._bound, self._frozen) if sign.pid in stopped else self._bound
            if self._waited > bound and sign.pid not in self._killed:
                late.append(Overdue(sign, "", bound, sign.pid in stopped))
        for overdue in late:
            self._killed[overdue.sign.pid] = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(overdue.sign.pid, signal.SIGKILL)
        return late

    def _another_done(self, now: float) -> bool:
        """Whether the run is done on a rank of this node, or of another in the same start."""
        here = self._roll.any_done
        if self._alone:
            return here
        latest = self._roll.latest()
        start = start_of(latest.attempt) if latest is not None else ""
        if start and now >= self._asked:
            self._asked = now + _ASK_EVERY
            if here:
                self._tell(start)
            elif farewell.is_done_elsewhere(self._folder, start):
                self._done_elsewhere = start
        return here or bool(start and self._done_elsewhere == start)

    def _tell(self, start: str) -> None:
        if self._told == start:
            return
        self._told = start
        try:
            farewell.tell_other_nodes(self._folder, start)
        except OSError as error:  # it matters only to a rank there that hangs
            say(f"other nodes are not told that a rank is done: {error.filename}: {error.strerror}")

    def took_too_long(self, overdue: Overdue) -> bool:
        """A worker was killed because it hung. Whether that was in its end, and is told herewith.

        A rank that is done keeps its result; one that is leaving with a fault has that on record.
        """
        sign = overdue.sign
        done = self._roll.is_done(sign)
        if not done and sign.part != LEAVING:
            return False
        self._killed[sign.pid] = time.monotonic()
        hung = f"hung {overdue}, and was killed"
        say(f"rank {sign.rank} {hung}" + ("; the run is done on it" if done else ""))
        if done:
            waited = Silent(sign.rank, overdue.stacks).waited
            record = FaultRecord(
                kind="interrupted" if waited else "hang",
                rank=sign.rank,
                step=sign.step,
                layer=self._layer,
                attempt=sign.attempt,
                what=f"{hung}, after the run was done on it",
                consequence=waited,
                stacks=overdue.stacks,
            )
            try:
                write_record(self._folder, record)
            except OSError as error:
                say(f"what is known about that cannot be written: {error.filename}: {error.strerror}")
        return True

    def stuck(self, now: float) -> bool:
        """Whether one of them is still there although it was killed: storage hangs, and its launcher waits for it.

        Args:
            now: monotonic clock.
        """
        return any(now > at + LONGEST_KILL and alive(pid) for pid, at in self._killed.items())

    def tell(self) -> None:
        """All have ended: say who died in its end. It has failed nothing, but it is no way to leave."""
        for sign in self._roll.parted:
            code = how_ended(self._control, sign.pid)
            if code and sign.pid not in self._killed:
                say(f"rank {sign.rank} died ({status_name(code)}) in its own end; the run is done on it")
