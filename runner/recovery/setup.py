"""What a recovery layer needs to know about this worker, gathered once per process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import Store

from runner.control.channel import Control
from runner.control.presence import Presence
from runner.errors import ExitCode
from runner.ledger.events import LifeEnded, LifeStarted
from runner.recipe import layer_settings
from runner.recipe.recipe import Recipe
from runner.recovery.ending import Coroner, Ending, describe
from runner.recovery.heartbeats import Heartbeats
from runner.recovery.life import ProcessLife
from runner.recovery.meeting import Meeting, meet
from runner.recovery.ranks import RankFacts
from runner.recovery.start_watch import StartWatch
from runner.train.ports import LifeLedger

_PAUSE = 0.05  # seconds


@dataclass(frozen=True)
class WorkerSetup:
    """One worker process of a run.

    Attributes:
        gpus: whether the ranks talk over NCCL.
        process_started: wall clock at which the process was created.
        log: a structlog logger.
    """

    recipe: Recipe
    facts: RankFacts
    run_folder: Path
    gpus: bool
    ledger: LifeLedger
    coroner: Coroner
    presence: Presence
    start_watch: StartWatch
    process_started: float
    log: Any

    @property
    def layer(self) -> str:
        """Name of the recovery layer."""
        return self.recipe.recovery.layer

    @property
    def group_timeout(self) -> timedelta:
        """Timeout of collectives and of waits on the store."""
        return self.recipe.recovery.process_group_timeout

    def meet(self) -> Meeting:
        """Where rank 0 serves the store."""
        return meet(self.facts, self.recipe.recovery.rendezvous_timeout)

    def open_heartbeats(self) -> Heartbeats | None:
        """A connection to the rank monitor, where ft_launcher runs one."""
        settings = layer_settings.ft_launcher(self.recipe)
        if settings is None or not self.facts.under_ft_launcher:
            return None
        name = f"silent-rank{self.facts.rank:05d}-{time.time_ns() // 1_000_000}.txt"
        stacks, alarm = self.run_folder / "faults" / name, settings.rank_heartbeat_timeout * 0.9
        self.presence.starting("monitor", self.recipe.recovery.start_timeout.total_seconds())
        try:
            return Heartbeats(stacks, alarm, Control.from_environment().folder)
        finally:
            self.presence.started()

    def agree_attempt(self, store: Store) -> str:
        """A name for this set of worker processes that all its ranks share and no other set has."""
        if self.facts.rank == 0:
            store.set("attempt", f"{time.time_ns() // 1_000_000:x}-{secrets.token_hex(2)}")
        store.wait(["attempt"], self.recipe.recovery.rendezvous_timeout)
        return str(store.get("attempt").decode())

    def pause_before_start(self, seconds: float, sign: Callable[[], None] = lambda: None) -> None:
        """Wait before a start, because the ones before it failed in start-up.

        Args:
            seconds: how long; nothing happens for 0.
            sign: called all along, to tell whoever watches that this rank is well.
        """
        if seconds <= 0:
            return
        self.log.warning(
            "waiting before this start", seconds=seconds, because="the last one finished no step"
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until and Control.from_environment().stop_requested() is None:
            sign()
            time.sleep(_PAUSE)

    def life_started(self, life: ProcessLife, *, iteration: int) -> None:
        """Record the beginning of a life."""
        self.presence.live(life.attempt)
        self.ledger.begin_life(life.attempt, rank=life.rank)
        self.ledger.record(
            LifeStarted(
                world_size=life.world_size,
                iteration=iteration,
                process_started=time.time() if life.in_process else self.process_started,
                in_process=life.in_process,
            )
        )

    @property
    def longest_end(self) -> float:
        """Seconds that a worker may take to be gone once it has said what it ends with."""
        return self.recipe.recovery.start_timeout.total_seconds()

    def life_finished(self, life: ProcessLife) -> None:
        """The run is done on this rank. Only how it leaves is still open, and does not count."""
        self.presence.finish(lambda: self._record_finished(life), self.longest_end)

    def leave(self, life: ProcessLife) -> None:
        """Leave the others, after the run was done."""
        try:
            life.leave()
        except Exception as error:  # noqa: BLE001 - told, and it changes nothing any more
            self.failed_after_all(life, error)

    def failed_after_all(self, life: ProcessLife, error: BaseException) -> None:
        """Something failed after the run was done on this rank."""
        self.log.error("failed after the run was done", rank=life.rank, error=describe(error), exc_info=error)

    def _record_finished(self, life: ProcessLife) -> None:
        self.ledger.record(LifeEnded("finished", int(ExitCode.DONE)))
        self.ledger.sync()
        if life.rank == 0:
            self.coroner.conclude(life, Ending(int(ExitCode.DONE), "finished", final=True))

    def life_failed(self, life: ProcessLife, ending: Ending) -> None:
        """A life is over without being done."""
        if ending.exit_code == ExitCode.PREEMPTED:
            event = LifeEnded("preempted", ending.exit_code, ending.message)
        elif ending.exit_code in (ExitCode.BAD_RECIPE, ExitCode.NO_LOADABLE_CHECKPOINT):
            event = LifeEnded("refused", ending.exit_code, ending.message)
        else:
            event = LifeEnded("error" if ending.final else "fault", ending.exit_code, ending.message)
        self.ledger.record(event)
        if ending.final:
            self.ledger.sync()  # else the next life starts sooner without it
