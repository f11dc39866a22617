"""`Manager`: the `Checkpointer` of the training loop, for all lives of one rank process.

What it puts together: `preparation` (layout, buffers), `staging` (snapshots), `writing` (files), `running` (the save
that is under way, in `save`'s thread), `stopping` (all ranks at once), `restore` and `retention`.
"""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch

from runner.checkpoint.contradiction import OwnRun
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.preparation import Preparation
from runner.checkpoint.restore import Restorer
from runner.checkpoint.retention import Retention
from runner.checkpoint.running import RunningSave, failure
from runner.checkpoint.save import SaveContext
from runner.checkpoint.shm import current_run_id
from runner.checkpoint.stopping import StopTogether
from runner.checkpoint.writing import Writing
from runner.control.farewell import PARTING
from runner.errors import RunError
from runner.ledger.events import LoadSource, SnapshotTaken
from runner.recipe import layer_settings
from runner.recipe.checkpoint import CheckpointSection
from runner.recipe.recipe import Recipe
from runner.train.ports import Ledger, Life, TrainState

_MARGIN = timedelta(seconds=30)
_FAREWELL = timedelta(seconds=PARTING)
_LAST_CHANCE = timedelta(seconds=10)
_LEAVE_PATIENCE = 5.0  # seconds that an abandoned save may take to notice when the process leaves
_DELETE_PATIENCE = (
    15.0  # seconds that the end of a run waits for deletions; a pod that leaves has not much longer
)


class Log(Protocol):
    """What is used of a structlog logger."""

    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


def build_checkpointer(recipe: Recipe, ledger: Ledger, log: Log, *, device: torch.device) -> Manager:
    """The checkpointer that a recipe asks for."""
    folder = recipe.checkpoint_folder.absolute()
    default = f"{recipe.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    respawns = layer_settings.ft_launcher(recipe) is not None
    return Manager(
        recipe.checkpoint,
        folder,
        current_run_id(default),
        ledger,
        log,
        device,
        successors=respawns,
        skew=2 * recipe.recovery.start_timeout
        + _MARGIN,  # data and model; a rank that hangs there goes first
        run=OwnRun(recipe.run_folder, recipe.training.steps),
        # The others must not lose their patience with this rank meanwhile.
        last_chance=min(_LAST_CHANCE, recipe.recovery.process_group_timeout / 4),
    )


class Manager:
    """See `runner.train.ports.Checkpointer` for the order of calls.

    Args:
        section: the recipe's settings.
        folder: where checkpoints go, absolute.
        run_id: names this run's shared memory on the node.
        device: where the state is.
        successors: whether a respawned worker may go on from this one's snapshots.
        skew: longest wait for the other ranks at the start of a life.
        run: what the checkpoints are held against; None to believe them.
        last_chance: longest time that a fault which ends the run waits for the running save.
    """

    def __init__(
        self,
        section: CheckpointSection,
        folder: Path,
        run_id: str,
        ledger: Ledger,
        log: Log,
        device: torch.device,
        *,
        successors: bool = True,
        skew: timedelta = timedelta(minutes=5),
        run: OwnRun | None = None,
        last_chance: timedelta = _LAST_CHANCE,
    ) -> None:
        self._run = run
        self._section = section
        self._ledger = ledger
        self._log = log
        self._folder = CheckpointFolder(folder)
        self._retention = Retention(self._folder, section, log)
        self._writing = Writing(section, log, self._beat)
        self._saves = RunningSave(
            section, self._writing, ledger, log, self._beat, last_chance.total_seconds()
        )
        self._prepared = Preparation(
            section, run_id, device, self._writing, log, successors=successors, skew=skew
        )
        self._save_pending = False  # the running copy becomes a save once it is complete
        self._late = False  # a snapshot was due whose memory was not ready
        self._stalled = 0.0
        self._updates = 0
        self._finished = False

    # --- life cycle

    def attach(self, life: Life, state: TrainState) -> None:
        """Bind to this life's ranks and tensors. Saves of earlier lives that are not committed are abandoned."""
        self._life, self._state = life, state
        self._saves.retire()
        self._exchange = Exchange(life, self._beat)
        staging, arena = self._prepared.prepare(life, state, self._exchange)
        staging.bind(state)
        self._staging = staging
        self._save_pending = self._late = False
        self._finished = False
        self._updates = 0
        self._stopping = StopTogether(self._exchange)
        context = SaveContext(
            life=life,
            section=self._section,
            folder=self._folder,
            fingerprint=self._prepared.fingerprint,
            tensors=self._prepared.tensors,
            decided=state.decided,
            committed=self._retention.request,
        )
        self._saves.bind(context, self._exchange, hashlib.sha256(life.attempt.encode()).hexdigest()[:8])
        life.on_abort(self.freeze)
        life.on_last_fault(self._saves.last_chance)
        self._writing.bind(life.rank, arena, self._prepared.files)

    def restore(self) -> tuple[int, LoadSource]:
        """Agree on the newest state that all ranks can have, copy it into the live state, return its step."""
        restorer = Restorer(
            exchange=self._exchange,
            staging=self._staging,
            folder=self._folder,
            retention=self._retention,
            section=self._section,
            run=self._run,
            fingerprint=self._prepared.fingerprint,
            in_process=self._life.in_process,
            log=self._log,
            beat=self._beat,
            reclaim=self._writing.collect,
        )
        step, source, data = restorer.restore(self._state)
        self._saves.committed = restorer.committed
        self._state.step = step
        if source != "fresh":
            self._state.data = data
            self._state.on_restored()
        return step, source

    def freeze(self) -> None:
        """Nothing that is not valid now becomes valid, nothing is committed any more in this life."""
        staging = self._prepared.staging
        if staging is not None:
            staging.freeze()
        self._saves.abandon()

    def reject(self) -> None:
        """The last update was bad: the snapshot and the save that it would have become are forgotten."""
        self._save_pending = False
        self._staging.reject()
        self._saves.abandon(step=self._state.step)

    def close(self) -> None:
        """Stop the writer; after a finished run the arena goes too, else a successor may need it."""
        self.freeze()
        self._saves.leave(_LEAVE_PATIENCE)
        self._writing.stop()
        self._prepared.release(remove=self._finished)

    # --- the loop's calls

    def before_forward(self) -> float:
        """Order the next forward behind the copy of what it may change. The host does not wait."""
        began = time.perf_counter()
        if self._updates:  # the life's first step is over, and known to be
            self._staging.started()
        self._staging.before_forward()
        return time.perf_counter() - began

    def before_update(self) -> float:
        """Wait for the running copy, hand its save to the writer, and see how the running save does."""
        began = time.perf_counter()
        self._updates += 1
        self._settle(began)
        self._saves.notice()
        failed = self._saves.failed
        if failed is not None and self._stopping.due(self._updates):
            raise failure(failed)
        return time.perf_counter() - began

    def after_update(self, *, force_save: bool = False) -> float:
        """Snapshot and save where due."""
        began = time.perf_counter()
        self._settle(began)
        self._saves.notice()
        section, step = self._section, self._state.step
        save = (force_save or step % section.every == 0) and self._saves.due(step) and self._saves.turn(step)
        snapshot = self._late or (section.snapshot_every is not None and step % section.snapshot_every == 0)
        if save or snapshot:
            self._stage(save, began)
        return time.perf_counter() - began

    def finish(self) -> None:
        """Save the last step if it is not saved, wait for the commit, raise if it failed."""
        self._settle(time.perf_counter())
        self._saves.drain()
        self._writing.collect(wait=True)
        step = self._state.step
        if self._saves.failed is None and step > 0 and step not in self._saves.committed:
            self._stage(True, time.perf_counter())
            self._settle(time.perf_counter())
            outcome = self._saves.drain()
            if outcome is not None and not outcome.committed:
                raise failure(outcome)
        if self._saves.failed is not None:
            raise failure(self._saves.failed)
        self._part()
        self._finished = True

    # --- inside

    def _stage(self, save: bool, began: float) -> None:
        """Start the snapshot of the live state, which becomes a save where `save` says so."""
        staging = self._staging
        self._writing.collect()
        present = staging.buffers.at(self._state.step)
        if present is not None:  # a snapshot of this very step is there already
            self._stalled = time.perf_counter() - began
            if save:
                self._saves.start(present, self._stalled)
            return
        buffer = staging.buffers.free()
        if buffer is None and save:
            self._writing.collect(wait=True)
            buffer = staging.buffers.free()
        if buffer is None:
            if save:
                raise RunError("checkpoint: no staging buffer is free, and no writer reads one")
            return  # a snapshot between two saves, while both other buffers are in use
        if not save and not staging.ready(buffer):
            self._late = True  # in the first steps of a process: taken after the next step instead
            return
        self._late = False
        staging.begin(buffer)
        self._save_pending = save
        self._stalled = time.perf_counter() - began
        if staging.immediate or (save and self._section.mode == "sync"):
            self._settle(time.perf_counter())

    def _settle(self, began: float) -> None:
        """Wait for the running copy; its save, where one is due, starts now."""
        if self._staging.buffers.pending is None:
            return
        buffer = self._staging.settle(self._beat)
        if buffer is None:
            return
        save, self._save_pending = self._save_pending, False
        self._stalled += time.perf_counter() - began
        self._ledger.record(SnapshotTaken(step=buffer.step, stalled=self._stalled))
        if save:
            self._saves.start(buffer, self._stalled)

    def _part(self) -> None:
        """Leave the other ranks: rank 0 last, and not before old checkpoints are deleted, if that ends in time.

        Rank 0 serves the store: were it gone first, a peer that has not read the last outcome would think it failed.
        """
        if self._life.rank != 0:
            self._exchange.put(f"finished/{self._life.rank}", True)
            return
        for peer in range(1, self._life.world_size):
            self._exchange.wait(f"finished/{peer}", _FAREWELL, f"rank {peer} to see its last save committed")
        if self._retention.wait(_DELETE_PATIENCE, self._beat):
            self._retention.sweep()  # what writers of abandoned saves have made since the start
        else:
            self._log.warning(
                "old checkpoints are still being deleted", path=str(self._folder.root), waited=_DELETE_PATIENCE,
                effect="what is left has a name that ends in .deleting and goes when the run is started again",
            )  # fmt: skip

    def _beat(self) -> None:
        self._life.heartbeat(self._state.step)
