"""What the end of a life means: a fault that a layer may mend, or the end of the run; and the record of it."""

from __future__ import annotations

import queue
import re
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch.distributed import DistError

from runner.control.lastword import LastWord
from runner.control.outcome import DECISIVE, NO_LIFE, TIMED_OUT, Outcome, write_outcome
from runner.errors import BusyError, ExitCode, MonitorGoneError, PeerMissingError, RunError, no_room
from runner.faults.records import FaultRecord, read_records, write_record
from runner.recovery.life import ProcessLife
from runner.recovery.sight import Sight
from runner.recovery.start_watch import StartHangError
from runner.streams import complain


class WorkerExit(RuntimeError):
    """The training function called `sys.exit` before it was done."""


@dataclass(frozen=True)
class Ending:
    """How a life ended on this rank.

    Attributes:
        exit_code: what the worker process would exit with.
        message: one line for the user.
        final: whether no layer may start the run again.
        consequence: whether this only follows from a fault elsewhere.
        spent_by: where restarts in place are spent, the life whose fault spent the last.
        launch_over: whether no restart by this launcher is any use, whatever the code.
    """

    exit_code: int
    message: str
    final: bool
    consequence: bool = False
    traceback: str = ""
    spent_by: str = ""
    launch_over: bool = False


def describe(error: BaseException) -> str:
    """Type and message of an error in one line."""
    if isinstance(error, MonitorGoneError):  # seen by this rank, and no error of it
        return error.fault
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text[:500]}" if text else name


def disk_full(rank: int, step: int, error: OSError, folder: Path) -> Ending:
    """The end of a run for want of room: a restart would meet the same disk.

    Args:
        rank, step: whose error it is, and what it had finished.
        error: what was raised.
        folder: of the run; taken for the place where the error does not name one.
    """
    where = f"rank {rank} after step {step}: {error.filename or folder}: {error.strerror}"
    text = "".join(traceback.format_exception(error))
    message = f"{where}; make room, then run the same command"
    return Ending(int(ExitCode.SAVE_FAILED), message, final=True, traceback=text)


_LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection was likely closed|remote process exited|"
    r"Failed to recv|Socket closed|recvValue failed|sendBytes failed",
    re.IGNORECASE,
)


def lost_a_peer(error: BaseException) -> bool:
    """Whether a collective or the store failed because another rank is gone or silent, which is that rank's fault.

    Only what torch raises itself is asked for its text: a connection may be lost to storage or to a data worker, too.
    """
    if isinstance(error, PeerMissingError):
        return True
    text, by_torch = str(error), type(error) is RuntimeError or isinstance(error, DistError)
    return by_torch and bool(_LOST_PEER.search(text) or TIMED_OUT.search(text))


class Coroner:
    """Judges the end of lives of one worker process and writes what is known about it.

    Records are written by a thread of their own: a durable write may take longer than the whole recovery. It runs from
    the start. NVRx interrupts the main thread by an exception set from outside, and CPython looks for the thread by an
    identity that a thread just being started still shares with its parent: the exception may end that one at birth,
    and the main thread waits for it for ever.

    Args:
        run_folder: where records and outcomes go.
        layer: name of the recovery layer.
        earlier: names of records of earlier launches, which do not count as repeated.
        restart: how often the launcher has restarted the workers.
        last_word: where the outcome goes if the run's folder cannot be written.

    Attributes:
        silenced: the outcome could be written nowhere.
    """

    def __init__(
        self,
        run_folder: Path,
        layer: str,
        earlier: frozenset[str],
        restart: int = 0,
        last_word: LastWord | None = None,
    ) -> None:
        self.silenced = False
        self._last_word = last_word
        self._folder = run_folder
        self._layer = layer
        self._earlier = earlier
        self._restart = restart
        self._causes: list[FaultRecord] | None = (
            None  # of earlier lives, this process's and its predecessors'
        )
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="fault-records", daemon=True)
        self._writer.start()

    def exception(self, life: ProcessLife, error: BaseException) -> Ending:
        """An exception left the training function.

        Errors with a final exit code end the run, and so does an exception like that of the fault before it, with no
        new step finished between the two: a restart cannot mend what it has just failed to mend. Nor does it make
        room on a disk. What is busy may be so again, and the pauses before starts get longer.
        """
        text = "".join(traceback.format_exception(error))
        if isinstance(error, MonitorGoneError):
            return self.monitor_gone(error, life)
        if isinstance(error, RunError) and error.exit_code in DECISIVE:
            if (
                error.exit_code == ExitCode.SAVE_FAILED and life.rank == 0
            ):  # all ranks raise it; it is no rank's own
                self._write(self._record(life, str(error), text, life.over))
            return Ending(int(error.exit_code), str(error), final=True, traceback=text)
        if isinstance(error, OSError) and no_room(error):
            return disk_full(life.rank, life.step, error, self._folder)
        consequence = life.over or lost_a_peer(error)
        hang = error.sight if isinstance(error, StartHangError) else None
        record = FaultRecord(
            kind="exception" if hang is None else "hang",
            rank=life.rank,
            step=life.step,
            layer=self._layer,
            attempt=life.attempt,
            what=describe(error) if hang is None else str(error),
            consequence=consequence,
            stacks=text if hang is None else hang.stacks,
            phase=_place_of(error) if hang is None else hang.place,
        )
        where = f"rank {life.rank} after step {life.step}: {record.what}"
        if hang is not None:
            where = f"rank {life.rank} {record.what}"
        passes = consequence or isinstance(error, BusyError)
        if not passes and (before := self._repeated(record)) is not None:
            self._write(record)
            message = f"no progress: {where}; the fault before it was the same: {before.what}"
            return Ending(int(ExitCode.NO_PROGRESS), message, final=True, traceback=text)
        self._write(record)
        return Ending(int(ExitCode.CRASHED), where, final=False, consequence=consequence, traceback=text)

    def monitor_gone(self, error: MonitorGoneError, life_or_rank: ProcessLife | int) -> Ending:
        """This rank's monitor was killed, which ends the launch.

        Args:
            error: says so.
            life_or_rank: the life in which that was felt, or the rank where none has begun.
        """
        rank, step, attempt = _place(life_or_rank)
        self._write(FaultRecord("died", rank, step, self._layer, attempt, error.fault))
        return Ending(int(error.exit_code), str(error), final=True, launch_over=True)

    def _record(self, life: ProcessLife, what: str, stacks: str, consequence: bool) -> FaultRecord:
        return FaultRecord(
            "exception", life.rank, life.step, self._layer, life.attempt, what, consequence, stacks
        )

    def interrupted(self, life: ProcessLife, reason: str, sight: Sight, *, hung: bool) -> None:
        """This rank's life is ended from outside; called in another thread while the main thread still runs."""
        self._write(
            FaultRecord(
                kind="hang" if hung else "interrupted",
                rank=life.rank,
                step=life.step,
                layer=self._layer,
                attempt=life.attempt,
                what=reason,
                consequence=not hung,
                stacks=sight.stacks,
                phase=sight.place,
            )
        )

    def _repeated(self, record: FaultRecord) -> FaultRecord | None:
        if self._causes is None:
            self._causes = [
                past
                for past in read_records(self._folder, without=self._earlier)
                if not past.consequence and past.attempt != record.attempt
            ]
        before = self._causes[-1] if self._causes else None
        self._causes.append(record)
        if before is None or before.kind != record.kind or before.signature != record.signature:
            return None
        return before if record.step <= before.step else None

    def _write(self, record: FaultRecord) -> None:
        self._queue.put(partial(write_record, self._folder, record))

    def flight_recorder(self, attempt: str, rank: int) -> None:
        """Keep what NCCL's flight recorder holds: the collectives under way, for PyTorch's `fr_trace`."""
        self._queue.put(partial(_dump_flight_recorder, self._folder / "faults", attempt, rank))

    def _write_all(self) -> None:
        while (write := self._queue.get()) is not None:
            try:
                write()
            except (OSError, RuntimeError) as error:  # a full disk must not hide the fault itself
                complain(f"what is known about a fault cannot be written: {error}")

    def close(self) -> None:
        """Wait until what is known is written; at most half a minute."""
        self._queue.put(None)
        self._writer.join(30)
        if self._last_word is not None:
            self._last_word.close()

    def conclude(self, life_or_rank: ProcessLife | int, ending: Ending) -> None:
        """Write the outcome of this worker process."""
        rank, step, attempt = _place(life_or_rank)
        outcome = Outcome(
            exit_code=ending.exit_code,
            message=ending.message,
            rank=rank,
            step=step,
            attempt=attempt,
            restart=self._restart,
            consequence=ending.consequence,
            traceback=ending.traceback,
            spent_by=ending.spent_by,
            launch_over=ending.launch_over,
        )
        try:
            write_outcome(self._folder, outcome, self._last_word)
        except (
            OSError
        ) as error:  # the supervisor sees the process vanish, and its exit status in the launcher's log
            self.silenced = True
            complain(f"what rank {rank} ended with cannot be written: {error}")


def _place(life_or_rank: ProcessLife | int) -> tuple[int, int, str]:
    """Rank, steps finished, and a name of the life, or of there being none."""
    if isinstance(life_or_rank, int):
        return life_or_rank, 0, f"{NO_LIFE}{time.time_ns()}"
    return life_or_rank.rank, life_or_rank.step, life_or_rank.attempt


def _dump_flight_recorder(folder: Path, attempt: str, rank: int) -> None:
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_nccl_trace", None)
    if dump is None:  # a torch without NCCL
        return
    # Without stack traces: they need the interpreter lock, which the main thread may hold.
    trace = dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"nccl-{attempt}-rank{rank:05d}.pickle").write_bytes(trace)


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
