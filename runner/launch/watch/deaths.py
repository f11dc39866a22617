"""Workers that vanished without a word: who, after which step, and by which signal."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from runner.control.outcome import NO_LIFE, TIMED_OUT, Outcome
from runner.control.signs import WorkerSign, start_of
from runner.control.silence import Silent, hung_ranks
from runner.faults.records import FaultRecord, records_of, write_record
from runner.launch.forkserver import how_ended
from runner.launch.watch.death import Death, status_name
from runner.launch.watch.overdue import Overdue
from runner.launch.watch.stopped import StoppedWorkers
from runner.launch.watch.unwatched import Unwatched
from runner.streams import complain

_PATIENCE = 2.0  # seconds until the launcher must have said how a worker ended
_MOMENT = 0.5  # seconds until the same of one of several that vanished together
_POLL = 0.01
SAME_MOMENT = 2.0  # seconds: of what is seen to end within it, one may have ended because of the other
_CLOSED = signal.SIGTERM.name  # what launchers end the peers of a dead worker with
_SAME_DEATH = 3  # a worker that dies so often after the same step is not mended by another start


class Deaths:
    """All deaths of one launch on this node.

    Args:
        log: what the launcher prints; it knows how its children ended, or some of them.
        run_folder: where records go.
        layer: name of the recovery layer.
        silence: seconds after which a launcher kills a silent rank; 0 where none does.
        forks: folder of the fork server, which knows it first and for certain; None where there is none.
        alone: whether there is no other node, for whose faults the launcher would end workers of this one.
        stopped: what is known about stopped workers of this node; None where nobody looks.
    """

    def __init__(
        self,
        log: Path,
        run_folder: Path,
        layer: str,
        silence: float = 0.0,
        forks: Path | None = None,
        *,
        alone: bool = True,
        stopped: StoppedWorkers | None = None,
    ) -> None:
        self._stopped = stopped
        self._silence, self._forks, self._alone = silence, forks, alone
        self.all: list[Death] = []
        self._said_before: dict[int, int] = {}  # by process id
        self._before_it: dict[int, tuple[int, list[Outcome]]] = {}  # likewise: deaths and outcomes
        self._excused: set[int] = set()  # process ids
        self._unmet: dict[tuple[int, int], str] = {}  # starts whose ranks did not meet
        self._log, self._folder, self._layer = log, run_folder, layer

    def expect(self, sign: WorkerSign, outcomes: list[Outcome]) -> None:
        """A worker has signed: what the launcher has said so far about its place is of workers before it.

        It may say how this one ended before the end itself is seen here: on a busy machine a look comes late.
        """
        self._said_before[sign.pid] = len(self._said(sign.local_rank))
        if not self._alone:  # else the launcher's count of restarts tells two starts apart
            self._before_it[sign.pid] = len(self.all), outcomes

    def in_order(self, gone: list[WorkerSign]) -> list[WorkerSign]:
        """Workers that vanished between two looks, those first that nobody ended.

        A launcher ends the peers of a dead worker with SIGTERM. On a busy machine the look comes when they are gone,
        too, and theirs is no fault. How each ended is known a moment later than that it did.
        """
        until = time.monotonic() + _MOMENT
        while True:
            how = {sign.pid: self._how_it_ended(sign) for sign in gone}
            known = [status for status in how.values() if status]
            if len(known) == len(gone) or set(known) - {_CLOSED} or time.monotonic() > until:
                return sorted(gone, key=lambda sign: (how[sign.pid] == _CLOSED, not how[sign.pid]))
            time.sleep(_POLL)

    def add(self, sign: WorkerSign, outcomes: list[Outcome]) -> Death | None:
        """A worker vanished. Nothing where the launcher took it down because of another one of the same start."""
        deaths, _ = self._before_it.get(sign.pid, (0, []))
        of_its_start = [outcome for outcome in outcomes if self._same_start(sign, outcome)]
        if any(death.sign.restart == sign.restart for death in self.all[deaths:]) or any(
            outcome.exit_code and not outcome.consequence for outcome in of_its_start
        ):
            return None
        hung = any(outcome.consequence and TIMED_OUT.search(outcome.message) for outcome in of_its_start)
        death = Death(sign, time.time(), self._before(sign), sign.rank, hung)
        self.all.append(death)
        return death

    def _same_start(self, sign: WorkerSign, outcome: Outcome) -> bool:
        """Whether a worker ended with this, on whichever node, that was started together with the dead one."""
        if sign.attempt and not outcome.attempt.startswith(NO_LIFE):
            return start_of(sign.attempt) == start_of(outcome.attempt)
        _, earlier = self._before_it.get(sign.pid, (0, []))
        return outcome.restart == sign.restart and outcome not in earlier

    def add_overdue(self, overdue: Overdue) -> Death:
        """A worker was killed because it hung while it started."""
        sign = overdue.sign
        death = Death(sign, time.time(), self._before(sign), sign.rank, True, overdue=overdue)
        self.all.append(death)
        return death

    def add_unwatched(self, unwatched: Unwatched) -> Death:
        """A worker was killed because its monitor had been."""
        sign = unwatched.sign
        death = Death(sign, time.time(), self._before(sign), sign.rank, False, unwatched=unwatched.signal)
        self.all.append(death)
        return death

    def _before(self, sign: WorkerSign) -> int:
        before = self._said_before.get(sign.pid)
        return len(self._said(sign.local_rank)) if before is None else before

    def excuse(self, pids: set[int]) -> None:
        """These workers end with what they hang on, now or a moment ago: that is no fault of theirs.

        The kernel ends them before anybody can see that their parent has ended.
        """
        self._excused |= pids
        just_now = time.time() - SAME_MOMENT
        for death in self.all:
            if death.sign.pid in pids or death.seen > just_now:
                self._excused.add(death.sign.pid)
                death.consequence = True

    def settle(self, *, finally_: bool = False) -> list[Death]:
        """Look what the launcher says about deaths, and record them; what it says later is known in the end.

        Returns:
            Those that were recorded herewith: whose fault it was does not change any more.
        """
        settled = []
        for death in self.all:
            if death.status or (death.recorded and not finally_):
                continue
            death.status = self._how_it_ended(death.sign, death.said_before)
            if death.recorded:
                continue
            if not death.status and not finally_ and time.time() < death.seen + _PATIENCE:
                continue
            death.recorded = True
            settled.append(death)
            death.consequence = death.sign.pid in self._excused or (
                death.status == _CLOSED and not self._alone
            )
            sign = death.sign
            if self.excused(death):  # the record of what it hung on says all
                continue
            hung = self._hung_ranks(death)
            if hung:
                death.hung, death.rank, death.waited_for_data = True, hung[0].rank, hung[0].waited_for_data
            record = FaultRecord(
                kind="hang" if death.hung else "died",
                rank=death.rank,
                stacks=hung[0].stacks if hung else "",
                step=sign.step,
                layer=self._layer,
                attempt=sign.attempt or self._no_life(death),
                what=str(death),
                consequence=death.consequence,
                time=death.seen,
            )
            self._write(record)
        return settled

    def _hung_ranks(self, death: Death) -> list[Silent]:
        """Ranks for whose silence it was killed; nobody where it was not. Of a stopped one it is known since when."""
        if death.overdue is not None:
            return [Silent(death.rank, death.overdue.stacks)]
        if death.unwatched:
            return []
        killed = death.status in ("SIGKILL", _CLOSED, "")
        stop = self._stopped.to_blame(death.sign, death.seen) if killed and self._stopped else None
        # The launcher kills a silent rank, and says so only when it has taken down the others.
        wrote = (
            hung_ranks(self._folder, self._silence, death.seen)
            if self._silence and killed and death.status != _CLOSED
            else []
        )
        since = stop.since if stop is not None else wrote[0].frozen_since if wrote else None
        if since is not None:
            death.frozen, death.lasted = True, max(0.0, death.seen - since)
        if stop is None:
            return wrote or (self._said_to_hang(death.sign) if killed else [])
        return [silent for silent in wrote if silent.rank == stop.sign.rank] or [Silent(stop.sign.rank, "")]

    def _said_to_hang(self, sign: WorkerSign) -> list[Silent]:
        """The rank that in-process restart found to hang in the life of a killed worker.

        It is killed by its own monitor, after which the launcher ends its peers alike, maybe before the look.
        """
        if not sign.attempt:
            return []
        records = records_of(self._folder, sign.attempt)
        return [Silent(r.rank, r.stacks) for r in records if r.kind == "hang" and not r.consequence]

    def excused(self, death: Death) -> bool:
        """Whether it ended with what it hangs on."""
        return death.sign.pid in self._excused

    def _no_life(self, death: Death) -> str:
        """What the deaths of one start have in common in their records, and no others, where its ranks had not met."""
        start = death.sign.restart, self._before_it.get(death.sign.pid, (0, []))[0]
        return self._unmet.setdefault(start, f"{NO_LIFE}{round(death.seen * 1000):x}")

    def hopeless(self) -> str:
        """Why another start is no use: the same worker, after the same step, time after time. Else nothing."""
        own = [death for death in self.all if not death.consequence]
        last = [(death.sign.rank, death.sign.step) for death in own[-_SAME_DEATH:]]
        if len(last) < _SAME_DEATH or len(set(last)) > 1:
            return ""
        rank, step = last[0]
        return f"no progress: rank {rank} died {_SAME_DEATH} times in a row after step {step}"

    def _write(self, record: FaultRecord) -> None:
        try:
            write_record(self._folder, record)
        except OSError as error:  # the death itself is known, and decides
            complain(
                f"nvrx-run: what is known about a fault cannot be written: {self._folder}: {error.strerror}"
            )

    def _how_it_ended(self, sign: WorkerSign, said_before: int | None = None) -> str:
        """How it ended; empty while nobody says."""
        code = how_ended(self._forks, sign.pid) if self._forks is not None else None
        if code is not None:
            return status_name(code)
        before = self._said_before.get(sign.pid, 0) if said_before is None else said_before
        said = self._said(sign.local_rank)
        return status_name(int(said[before])) if len(said) > before else ""

    def _said(self, local_rank: int) -> list[bytes]:
        pattern = rb"failed \(exitcode: (-?\d+)\) local_rank: %d \(pid: \d+\)" % local_rank
        return re.findall(pattern, said_in(self._log))


def said_in(log: Path) -> bytes:
    """What a launcher has printed; nothing where somebody has removed its log: what workers have said stands."""
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""
