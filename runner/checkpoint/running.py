"""The save that is under way: one at a time, started by all ranks together, and seen to its end by each.

Ranks learn how a save ended at different moments. So whether another one starts is decided from what all ranks know
alike (the step, which saves have begun, how a save ended that all have waited for) or by rank 0 for all.
"""

from __future__ import annotations

import time
from typing import Any

from runner.checkpoint.buffers import Buffer
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.save import PEERS_PATIENCE, Outcome, SaveContext, SaveJob
from runner.checkpoint.writing import Writing
from runner.errors import ExitCode, RunError
from runner.ledger.events import SaveCommitted, SaveFailed, SaveStarted
from runner.recipe.checkpoint import CheckpointSection
from runner.train.ports import Ledger

_PAUSE = 0.002
STOP_PATIENCE = 2 * PEERS_PATIENCE


class RunningSave:
    """The saves of one rank over all lives of its process. For the main thread, but for `abandon`.

    Args:
        section: mode, policies and timeouts.
        writing: writes this rank's part.
        ledger, log: told how saves begin and end.
        beat: called while waiting.
        last_chance: seconds that `last_chance` waits.

    Attributes:
        committed: steps on storage, as far as this rank knows.
        failed: the failure that ends this life, as soon as this rank knows of one.
    """

    def __init__(
        self,
        section: CheckpointSection,
        writing: Writing,
        ledger: Ledger,
        log: Any,
        beat: Any,
        last_chance: float = 0.0,
    ) -> None:
        self.committed: set[int] = set()
        self.failed: Outcome | None = None
        self._section = section
        self._writing = writing
        self._ledger = ledger
        self._log = log
        self._beat = beat
        self._last_chance = last_chance
        self._job: SaveJob | None = None

    def bind(self, context: SaveContext, exchange: Exchange, tag: str) -> None:
        """Start a life, after `retire`. `tag` keeps the partial folders of different lives apart."""
        self._context, self._exchange, self._tag = context, exchange, tag
        self.failed = None
        self._begun = -1  # step of the newest save of this life
        self._count = 0

    # --- begin

    def due(self, step: int) -> bool:
        """Whether `step` has neither been committed nor tried in this life. The same on all ranks."""
        return step != self._begun and step not in self.committed

    def turn(self, step: int) -> bool:
        """Whether a due save starts now: after the one before, or not at all. All ranks call it, and get the same.

        Raises:
            RunError: the save before, or rank 0's decision, does not come.
        """
        if self._section.on_busy == "skip":
            go = self._exchange.decide(
                f"turn/{self._tag}/{step}",
                lambda: self._job is None or self._job.outcome is not None,
                self._section.write_timeout,
                "the choice to save",
            )
            if not go:
                because = "the save before is still being written"
                self._log.warning("save left out", step=step, because=because)
                return False
        elif self._job is not None:
            self._log.warning("save waits", step=step, for_step=self._job.step)
        self.drain()
        return self.failed is None  # by now all ranks know how every save has ended

    def start(self, buffer: Buffer, stalled: float) -> None:
        """Save what is in `buffer`. All ranks start the same saves in the same order.

        Args:
            stalled: seconds that training has waited for this snapshot so far.

        Raises:
            RunError: SAVE_FAILED where a synchronous save failed and the policy is to stop, on every rank.
        """
        began = time.perf_counter()
        self._count += 1
        self._begun = buffer.step
        partial = self._context.folder.partial(buffer.step, f"{self._tag}-{self._count}")
        self._log.info("saving", step=buffer.step, path=str(partial), mode=self._section.mode)
        own_part = self._writing.begin(partial, buffer)
        self._job = SaveJob(self._context, buffer.step, partial, buffer.data, own_part)
        self._writing.lend(buffer, self._job)
        self._job.start()
        outcome = self._wait() if self._section.mode == "sync" else None
        stalled += time.perf_counter() - began
        self._ledger.record(SaveStarted(step=buffer.step, mode=self._section.mode, stalled=stalled))
        if outcome is not None:
            self._conclude(outcome)
            if self.failed is not None:
                raise failure(self.failed)  # all ranks are here

    # --- see to the end

    def notice(self) -> None:
        """Look, without waiting, whether the running save has ended.

        Raises:
            dist.DistError: the life's store is gone, and with it the process that served it.
        """
        self._writing.collect()
        _raise_where_lost(self._job)
        if self._job is not None and self._job.outcome is not None:
            outcome, self._job = self._job.outcome, None
            self._conclude(outcome)

    def drain(self) -> Outcome | None:
        """Wait for the running save and tell how it ended. Bounded by the save's own deadlines.

        Raises:
            RunError: SAVE_FAILED where storage hangs so that not even a failure is known.
            dist.DistError: the life's store is gone.
        """
        outcome = self._wait()
        if outcome is not None:
            self._conclude(outcome)
        return outcome

    def _wait(self) -> Outcome | None:
        job = self._job
        if job is None:
            return None
        end = job.started + (self._section.write_timeout + STOP_PATIENCE).total_seconds()
        while job.outcome is None and job.is_alive():
            if time.monotonic() > end:  # the thread itself is stuck, in a write that the kernel does not end
                job.abandon()
                raise RunError(
                    f"the save of step {job.step} to {job.partial} does not return: storage hangs",
                    ExitCode.SAVE_FAILED,
                )
            self._beat()
            job.join(_PAUSE)
        self._job = None
        _raise_where_lost(job)
        return job.outcome

    def _conclude(self, outcome: Outcome) -> None:
        """Tell ledger and log; remember the failure where the policy is to stop."""
        if outcome.committed:
            self.committed.add(outcome.step)
            if self._context.life.rank == 0:
                self._ledger.record(
                    SaveCommitted(step=outcome.step, bytes=outcome.nbytes, seconds=outcome.seconds)
                )
                self._log.info(
                    "saved", step=outcome.step, path=str(outcome.path), seconds=round(outcome.seconds, 3)
                )
            return
        self._ledger.record(
            SaveFailed(step=outcome.step, path=str(outcome.path), reason=outcome.reason or "")
        )
        self._log.error("save failed", step=outcome.step, path=str(outcome.path), reason=outcome.reason)
        if self._section.on_error == "stop" and self.failed is None:
            self.failed = outcome

    def last_chance(self) -> None:
        """The run ends with a fault of this rank, and nobody goes on from its memory: let the running save end first.

        What it writes was complete before the fault, and the other ranks, which wait for this one in a collective, see
        to their parts. Only what is left of a write that is about to end is waited for.
        """
        job = self._job
        if job is None:
            return
        end = time.monotonic() + self._last_chance
        while job.is_alive() and job.outcome is None and time.monotonic() < end:
            self._beat()
            job.join(_PAUSE)
        if job.outcome is not None:
            self._job = None
            self._conclude(job.outcome)
        elif job.is_alive():
            self._log.warning(
                "save given up",
                step=job.step,
                because=f"a fault ends the run, and {self._last_chance:g} s were not enough",
            )

    # --- give up

    def abandon(self, *, step: int | None = None) -> None:
        """The running save shall not commit (where it is that of `step`, if given). Any thread; does not block."""
        job = self._job  # the main thread may take it away meanwhile
        if job is not None and step in (None, job.step):
            job.abandon()

    def retire(self) -> None:
        """End what the life before left running.

        Raises:
            RunError: its write does not return.
        """
        job = self._job
        if job is None:
            return
        job.abandon()
        end = time.monotonic() + self._section.write_timeout.total_seconds()
        while job.is_alive():  # at most what a synchronous write in it still takes
            if time.monotonic() > end:
                raise RunError(f"checkpoint: the write of step {job.step} does not return: storage hangs")
            job.join(_PAUSE * 10)
            self._beat()
        self._job = None
        self._tell_if_committed(job)

    def leave(self, patience: float) -> None:
        """The process ends: give an abandoned save `patience` seconds; where storage hangs, its thread stays behind."""
        job, self._job = self._job, None
        if job is not None:
            job.abandon()
            job.join(patience)
            self._tell_if_committed(job)

    def _tell_if_committed(self, job: SaveJob) -> None:
        """A save that was committed before its life ended, and before the loop looked again, counts like any other."""
        if job.outcome is not None and job.outcome.committed:
            self._conclude(job.outcome)


def _raise_where_lost(job: SaveJob | None) -> None:
    if job is not None and job.lost is not None:
        raise job.lost


def failure(outcome: Outcome) -> RunError:
    """The error that ends a life after a failed save."""
    return RunError(
        f"the save of step {outcome.step} to {outcome.path} failed: {outcome.reason}", ExitCode.SAVE_FAILED
    )
