"""How a rank's part of a save is written, and which staging buffers a write still reads.

Asynchronous saves go to NVRx's writer process, synchronous ones are written by the save's own thread. A write may
outlive its save: a fault abandons the save, and the writer goes on. So a buffer is lent to a write, not to a save, and
comes back when the write has left it. There may be several such loans at a time, each with a deadline of its own; only
the main thread lends and takes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoint.arena import Arena
from runner.checkpoint.buffers import Buffer
from runner.checkpoint.nvrx_queue import WriterQueue
from runner.checkpoint.plan import FilePlan
from runner.checkpoint.save import SaveError, SaveJob
from runner.checkpoint.writer import WriteRequest, prepare_writer, run_request, write_synchronously
from runner.recipe.checkpoint import CheckpointSection

_PAUSE = 0.002

OwnPart = Callable[[], list[dict[str, Any]] | None]  # see `SaveJob`


@dataclass(frozen=True)
class _Loan:
    buffer: Buffer
    job: SaveJob
    deadline: float  # monotonic
    writer: WriterQueue | None  # None: the save's thread writes


class Writing:
    """The writer process of one rank over all lives, and the buffers that are lent to writes.

    Args:
        section: mode and `write_timeout`.
        log: told when a writer is replaced or killed.
        beat: called while waiting.
        make_writer: starts a writer process for a rank.
    """

    def __init__(
        self,
        section: CheckpointSection,
        log: Any,
        beat: Callable[[], None],
        make_writer: Callable[[int], WriterQueue] = lambda rank: WriterQueue(rank, prepare_writer),
    ) -> None:
        self._synchronous = section.mode == "sync"
        self._timeout = section.write_timeout.total_seconds()
        self._log = log
        self._beat = beat
        self._make_writer = make_writer
        self._writer: WriterQueue | None = None
        self._loans: list[_Loan] = []
        self._handed: list[str] = []  # saves that the writer has not reported, oldest first
        self._files: tuple[FilePlan, ...] = ()

    def bind(self, rank: int, arena: Arena, files: tuple[FilePlan, ...]) -> None:
        """Start a life: from now on `files` are written from `arena`. The writer starts now, ahead of step 1."""
        self._rank, self._arena, self._files = rank, arena, files
        if self._asynchronous:
            self.ensure_writer()

    @property
    def _asynchronous(self) -> bool:
        return bool(self._files) and not self._synchronous

    def ensure_writer(self) -> WriterQueue:
        """The writer process, a new one where the last one has died."""
        death = self._writer.death() if self._writer is not None else None
        if death is not None:
            self._log.warning("writer process restarted", reason=death)
            self.kill(death)
        if self._writer is None:
            self._writer = self._make_writer(self._rank)
        return self._writer

    def idle(self) -> bool:
        """Whether no writer process has anything to do."""
        return self._writer is None or self._writer.idle()

    # --- writes

    def begin(self, partial: Path, buffer: Buffer) -> OwnPart:
        """Have this rank's part of a save written; returns what its `SaveJob` asks for it (any thread).

        `lend` must follow with that job, before anything else is called here.
        """
        arena, files = self._arena, self._files
        if not self._asynchronous:
            return lambda: write_synchronously(partial, arena, buffer.index, files)
        writer, save = self.ensure_writer(), partial.name
        self._handed.append(save)
        writer.submit(run_request, (WriteRequest(save, arena.path, buffer.index, str(partial), files),))

        def part() -> list[dict[str, Any]] | None:
            death = writer.death()  # before the mail: what it wrote until then counts
            mail = arena.read_mail()
            if mail is not None and mail["save"] == save:
                if "error" in mail:
                    raise SaveError(mail["error"])
                return mail["files"]
            if death is not None:
                raise SaveError(f"the writer process is gone: {death}")
            return None

        return part

    def lend(self, buffer: Buffer, job: SaveJob) -> None:
        """The write of `job`, which `begin` has just been called for, reads `buffer`."""
        writer = self._writer if self._asynchronous else None
        self._loans.append(_Loan(buffer, job, job.started + self._timeout, writer))

    def lent(self) -> list[Buffer]:
        """Buffers that a write may still read. A restart may interrupt any line here: there is no count to go wrong."""
        return [loan.buffer for loan in self._loans]

    def collect(self, *, wait: bool = False) -> None:
        """Take back the buffers that are not read any more.

        A write that its save does not wait for any more and that has had its time is ended, with the writer process.

        Args:
            wait: until all buffers are back whose saves are over; bounded by the deadlines of their writes.
        """
        while True:
            self._read_reports()
            self._loans = [loan for loan in self._loans if not self._left(loan)]
            over = [loan for loan in self._loans if not loan.job.is_alive()]
            late = [loan.job.step for loan in over if time.monotonic() > loan.deadline]
            if late:
                reason = f"it did not finish the abandoned save of step {late[0]} in time"
                self._log.warning("writer process killed", reason=reason)
                self.kill(f"it was killed because {reason}")
                continue
            if not wait or not over:
                return
            self._beat()
            time.sleep(_PAUSE)

    def _read_reports(self) -> None:
        """What the writer has reported is no longer handed to it. It works in order, and the last report stays."""
        if self._writer is not None:
            self._writer.idle()  # has NVRx strike off what is done
        if self._handed:
            mail = self._arena.read_mail()
            if mail is not None and mail["save"] in self._handed:
                del self._handed[: self._handed.index(mail["save"]) + 1]

    def _left(self, loan: _Loan) -> bool:
        if loan.job.write_finished.is_set():
            return True
        if loan.writer is None:
            return not loan.job.is_alive()
        gone = loan.writer is not self._writer or loan.writer.death() is not None
        return gone or loan.job.partial.name not in self._handed

    # --- the end

    def stop(self) -> None:
        """Let an idle writer leave by itself, end a busy one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()

    def kill(self, reason: str) -> None:
        """End the writer process, if there is one, whatever it does; saves that wait for it fail with `reason`."""
        writer, self._writer = self._writer, None
        self._handed.clear()
        if writer is not None:
            writer.kill(reason)
