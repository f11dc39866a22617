"""`Manager`: the `Checkpointer` of the training loop, for all lives of one rank process."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch

from runner.checkpoint.arena import Arena, ArenaError, Purpose, open_arena, private_arena
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.layout import Layout, fingerprint, local_layout, placement
from runner.checkpoint.plan import FilePlan, plan_files, shards_to_write
from runner.checkpoint.restore import Restorer
from runner.checkpoint.save import PEERS_PATIENCE, Outcome, SaveContext, SaveJob
from runner.checkpoint.shm import arena_path, current_run_id
from runner.checkpoint.staging import Buffer, Staging
from runner.checkpoint.writing import Writing
from runner.errors import ExitCode, InputError, RunError
from runner.ledger.events import LoadSource, SaveCommitted, SaveFailed, SaveStarted, SnapshotTaken
from runner.recipe.checkpoint import CheckpointSection
from runner.recipe.recipe import Recipe
from runner.recipe.recovery import ft_launcher_settings
from runner.train.ports import Ledger, Life, TrainState

_MEET_TIMEOUT = timedelta(minutes=5)  # the ranks' start-up skew in `attach`
_LEAVE_PATIENCE = 5.0  # seconds that an abandoned save may take to notice when the process leaves
_PAUSE = 0.002
STOP_PATIENCE = 2 * PEERS_PATIENCE


class Log(Protocol):
    """What is used of a structlog logger."""

    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


def build_checkpointer(recipe: Recipe, ledger: Ledger, log: Log, *, device: torch.device) -> Manager:
    """The checkpointer that a recipe asks for.

    Raises:
        InputError: the folder is in an object store.
    """
    folder = recipe.checkpoint_folder.absolute()
    if any(part.endswith(":") for part in folder.parts):
        raise InputError(
            f"checkpoint.folder: {recipe.checkpoint.folder}: object stores cannot rename a folder, which is what "
            "commits a checkpoint; use a local or shared folder and copy committed checkpoints from there"
        )
    default = f"{recipe.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    respawns = ft_launcher_settings(recipe.recovery) is not None
    return Manager(
        recipe.checkpoint, folder, current_run_id(default), ledger, log, device, successors=respawns
    )


class Manager:
    """See `runner.train.ports.Checkpointer` for the order of calls.

    Args:
        section: the recipe's settings.
        folder: where checkpoints go, absolute.
        run_id: names this run's shared memory on the node.
        device: where the state is.
        successors: whether a respawned worker may go on from this one's snapshots.
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
    ) -> None:
        self._successors = successors
        self._section = section
        self._folder = CheckpointFolder(folder)
        self._run_id = run_id
        self._ledger = ledger
        self._log = log
        self._device = device
        self._arena: Arena | None = None
        self._staging: Staging | None = None
        self._writing = Writing(section, log, self._beat)
        self._job: SaveJob | None = None
        self._save_pending = False
        self._stalled = 0.0
        self._committed: set[int] = set()
        self._layouts: dict[str, Layout] = {}
        self._known: tuple[Any, Layout, str] | None = None  # what decides the layout, the layout, its digest
        self._planned: tuple[Any, tuple[FilePlan, ...]] | None = None
        self._files: tuple[FilePlan, ...] = ()
        self._finished = False
        self._failed: Outcome | None = None  # the failure that ends this life, once all ranks know of it
        self._stop_at: int | None = None
        self._updates = 0
        self._saves = 0

    # --- life cycle

    def attach(self, life: Life, state: TrainState) -> None:
        """Bind to this life's ranks and tensors. Saves of earlier lives that are not committed are abandoned."""
        self._life, self._state = life, state
        self._retire()
        self._exchange = Exchange(life, self._beat)
        layout = self._lay_out(state)
        self._files = self._plan(layout)
        self._prepare_staging(layout)
        assert self._staging is not None
        self._staging.bind(state)
        self._save_pending = False
        self._finished = False
        self._failed = self._stop_at = None
        self._updates = self._saves = 0
        self._tag = hashlib.sha256(life.attempt.encode()).hexdigest()[:8]
        self._context = SaveContext(
            life=life,
            section=self._section,
            folder=self._folder,
            fingerprint=self._fingerprint,
            tensors=self._context_tensors,
            usable=Restorer.usable,
        )
        life.on_abort(self.freeze)
        assert self._arena is not None
        self._writing.bind(life.rank, self._arena, self._files)

    def restore(self) -> tuple[int, LoadSource]:
        """Agree on the newest state that all ranks can have, copy it into the live state, return its step."""
        assert self._staging is not None
        restorer = Restorer(
            exchange=self._exchange,
            staging=self._staging,
            folder=self._folder,
            section=self._section,
            fingerprint=self._fingerprint,
            in_process=self._life.in_process,
            log=self._log,
            beat=self._beat,
        )
        step, source, data = restorer.restore(self._state)
        self._committed = restorer.committed
        self._state.step = step
        if source != "fresh":
            self._state.data = data
            self._state.on_restored()
        return step, source

    def freeze(self) -> None:
        """Nothing that is not valid now becomes valid, nothing is committed any more in this life."""
        if self._staging is not None:
            self._staging.freeze()
        job = self._job  # the main thread may take it away meanwhile
        if job is not None:
            job.abandon()

    def reject(self) -> None:
        """The last update was bad: the snapshot and the save that it would have become are forgotten."""
        self._save_pending = False
        if self._staging is not None:
            self._staging.reject()
        if self._job is not None and self._job.step == self._state.step:
            self._job.abandon()

    def close(self) -> None:
        """Stop the writer; after a finished run the arena goes too, else a successor may need it."""
        self.freeze()
        if self._job is not None:  # a daemon thread: where storage hangs, the process leaves without it
            self._job.join(_LEAVE_PATIENCE)
            self._job = None
        self._writing.stop()
        self._drop_staging(remove=self._finished)

    # --- the loop's calls

    def before_forward(self) -> float:
        """Order the next forward behind the copy of what it may change. The host does not wait."""
        began = time.perf_counter()
        assert self._staging is not None
        self._staging.before_forward()
        return time.perf_counter() - began

    def before_update(self) -> float:
        """Wait for the running copy, hand its save to the writer, and see how the running save does."""
        began = time.perf_counter()
        self._updates += 1
        self._settle(began)
        self._notice()
        self._stop_together()
        return time.perf_counter() - began

    def after_update(self, *, force_save: bool = False) -> float:
        """Snapshot and save where due."""
        began = time.perf_counter()
        assert self._staging is not None
        self._settle(began)
        self._notice()
        section, step = self._section, self._state.step
        save = (force_save or step % section.every == 0) and not self._saved(step) and self._failed is None
        snapshot = section.snapshot_every is not None and step % section.snapshot_every == 0
        if save:
            save = self._turn(step)
        if save or snapshot:
            self._stage(save, began)
        return time.perf_counter() - began

    def _saved(self, step: int) -> bool:
        """Whether `step` is committed or on its way."""
        return step in self._committed or (self._job is not None and self._job.step == step)

    def finish(self) -> None:
        """Save the last step if it is not saved, wait for the commit, raise if it failed."""
        self._settle(time.perf_counter())
        self._drain()
        self._writing.collect(wait=True)
        step = self._state.step
        if self._failed is None and step > 0 and step not in self._committed:
            self._stage(True, time.perf_counter())
            self._settle(time.perf_counter())
            outcome = self._drain()
            if outcome is not None and not outcome.committed:
                raise self._failure(outcome)
        if self._failed is not None:
            raise self._failure(self._failed)
        # Rank 0 serves the store: were it gone first, a peer that has not read the last outcome would think it failed.
        if self._life.rank != 0:
            self._exchange.put(f"finished/{self._life.rank}", True)
        else:
            for peer in range(1, self._life.world_size):
                self._exchange.wait(
                    f"finished/{peer}", _MEET_TIMEOUT, f"rank {peer} to see its last save committed"
                )
            self._folder.sweep()  # what writers of abandoned saves have made since the start
        self._finished = True

    # --- saves

    def _stage(self, save: bool, began: float) -> None:
        staging = self._staging
        assert staging is not None
        self._writing.collect()
        present = staging.at(self._state.step)
        if present is not None:  # a snapshot of this very step is there already
            self._stalled = time.perf_counter() - began
            if save:
                self._start_save(present)
            return
        buffer = staging.free()
        if buffer is None and save:
            self._writing.collect(wait=True)
            buffer = staging.free()
        if buffer is None:
            if save:
                raise RunError("checkpoint: no staging buffer is free, and no writer reads one")
            return  # a snapshot between two saves, while both other buffers are in use
        staging.begin(buffer)
        self._save_pending = save
        self._stalled = time.perf_counter() - began
        if staging.immediate or (save and self._section.mode == "sync"):
            self._settle(time.perf_counter())

    def _settle(self, began: float) -> None:
        """Wait for the running copy; its save, where one is due, starts now."""
        staging = self._staging
        assert staging is not None
        if staging.pending is None:
            return
        buffer = staging.settle(self._beat)
        if buffer is None:
            return
        save, self._save_pending = self._save_pending, False
        self._stalled += time.perf_counter() - began
        self._ledger.record(SnapshotTaken(step=buffer.step, stalled=self._stalled))
        if save:
            self._start_save(buffer)

    def _start_save(self, buffer: Buffer) -> None:
        self._saves += 1
        partial = self._folder.partial(buffer.step, f"{self._tag}-{self._saves}")
        synchronous = self._section.mode == "sync"
        self._log.info("saving", step=buffer.step, path=str(partial), mode=self._section.mode)
        began = time.perf_counter()
        own_part = self._writing.begin(partial, buffer)
        self._job = SaveJob(self._context, buffer.step, partial, buffer.data, own_part)
        self._writing.lend(buffer, self._job)
        self._job.start()
        if synchronous:
            outcome = self._drain(keep=True)
            self._stalled += time.perf_counter() - began
            self._ledger.record(SaveStarted(step=buffer.step, mode="sync", stalled=self._stalled))
            if outcome is not None:
                self._conclude(outcome)
            if self._failed is not None:
                raise self._failure(self._failed)  # all ranks are here
        else:
            self._stalled += time.perf_counter() - began
            self._ledger.record(SaveStarted(step=buffer.step, mode="async", stalled=self._stalled))

    def _turn(self, step: int) -> bool:
        """Whether a due save starts now: after the one before, or not at all where that still runs.

        Ranks learn of a save's end at different moments, so where it matters rank 0 says for all what it sees.
        """
        if self._section.on_busy == "skip":
            go = self._exchange.decide(
                f"turn/{self._tag}/{step}",
                lambda: self._job is None or self._job.outcome is not None,
                self._section.write_timeout,
                "the choice to save",
            )
            if not go:
                self._log.warning(
                    "save left out", step=step, because="the save before is still being written"
                )
                return False
        elif self._job is not None:
            self._log.warning("save waits", step=step, for_step=self._job.step)
        self._drain()
        return True

    def _notice(self) -> None:
        """Look, without waiting, whether the running save has ended."""
        self._writing.collect()
        if self._job is not None and self._job.outcome is not None:
            outcome = self._job.outcome
            self._job = None
            self._conclude(outcome)

    def _drain(self, *, keep: bool = False) -> Outcome | None:
        """Wait for the running save. Bounded by the job's own deadlines. `keep`: the caller concludes."""
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
        outcome = job.outcome
        self._job = None
        if outcome is not None and not keep:
            self._conclude(outcome)
        return outcome

    def _conclude(self, outcome: Outcome) -> None:
        """Tell ledger and log; raise where the policy says so."""
        if outcome.committed:
            self._committed.add(outcome.step)
            if self._life.rank == 0:
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
        if self._section.on_error == "stop" and self._failed is None:
            self._failed = outcome

    def _stop_together(self) -> None:
        """End this life after a failed save, all ranks before the same update.

        A rank that stopped alone would leave the others in a collective. So each says at which update it learnt
        of the failure; steps keep the ranks within two updates of each other, so that the last one's place plus
        three lies ahead of everybody who reads it.
        """
        if self._failed is None:
            return
        if self._stop_at is None:
            mine = f"stop/{self._life.rank}"
            if self._exchange.peek(mine) is None:
                self._exchange.put(mine, self._updates)
            places = [self._exchange.peek(f"stop/{rank}") for rank in range(self._life.world_size)]
            if None in places:
                return
            self._stop_at = max(places) + 3
        if self._updates >= self._stop_at:
            raise self._failure(self._failed)

    def _failure(self, outcome: Outcome) -> RunError:
        return RunError(
            f"the save of step {outcome.step} to {outcome.path} failed: {outcome.reason}",
            ExitCode.SAVE_FAILED,
        )

    # --- inside

    def _beat(self) -> None:
        self._life.heartbeat(self._state.step)

    def _retire(self) -> None:
        """End what the life before left running."""
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
        if job.outcome is not None and job.outcome.committed:
            self._committed.add(job.step)
        self._job = None

    def _lay_out(self, state: TrainState) -> Layout:
        """The layout of the local shards, that of the life before where nothing has moved."""
        signature = (self._life.rank, self._life.world_size, placement(state.tensors))
        if self._known is None or self._known[0] != signature:
            layout = local_layout(state.tensors)
            self._known = (signature, layout, layout.digest)
            self._fingerprint = fingerprint(state.tensors)
            self._context_tensors = {s.name: [s.dtype, list(s.shape)] for s in layout.shards}
        return self._known[1]

    def _plan(self, layout: Layout) -> tuple[FilePlan, ...]:
        """This rank's files. Layouts are sent only where a rank has not seen them in an earlier life."""
        assert self._known is not None
        rank, mine = self._life.rank, self._known[2]
        self._layouts[mine] = layout
        digests = self._exchange.gather(
            "layout-digest", [mine, self._planned is not None], _MEET_TIMEOUT, "the layout"
        )
        order = [digest for digest, _ in digests]
        if self._planned is not None and self._planned[0] == (rank, order):
            if not all(knows for _, knows in digests):
                self._exchange.put(f"layout/{rank}", layout.to_json())
            return self._planned[1]
        self._exchange.put(f"layout/{rank}", layout.to_json())
        for other, digest in enumerate(order):
            if digest not in self._layouts:
                sent = self._exchange.wait(f"layout/{other}", _MEET_TIMEOUT, f"the layout of rank {other}")
                self._layouts[digest] = Layout.from_json(sent)
        shards = shards_to_write([self._layouts[digest] for digest in order], rank)
        files = plan_files(shards, rank, self._section.writer_threads)
        self._planned = ((rank, order), files)
        return files

    def _prepare_staging(self, layout: Layout) -> None:
        assert self._known is not None
        life, section = self._life, self._section
        between = section.snapshot_every is not None and section.snapshot_every < section.every
        items = sum(len(file.shards) for file in self._files)
        purpose = Purpose(
            run_id=self._run_id,
            rank=life.rank,
            world_size=life.world_size,
            layout=self._known[2],
            fingerprint=self._fingerprint,
            # One is filled beside the newest. Between two saves another is read by the writer, or is what a
            # successor would use while the newest has no checksum yet.
            buffers=3 if between and (section.mode == "async" or self._successors) else 2,
            buffer_bytes=layout.nbytes,
            mailbox_bytes=(64 << 10) + 512 * items,
        )
        if self._arena is not None:
            if self._arena.purpose == purpose:
                return
            self._writing.kill(
                "the staging buffers are laid out anew"
            )  # it may still read what is about to go
            self._drop_staging(remove=True)
        one_by_one = self._device.type == "cuda"  # where the buffers are page-locked beside training
        try:
            self._arena = open_arena(arena_path(self._run_id, life.rank), purpose, first_only=one_by_one)
        except ArenaError as error:
            self._log.warning(
                "snapshots are private to this process", reason=str(error), remedy="enlarge /dev/shm",
                effect="a respawned worker loads from storage",
            )  # fmt: skip
            try:
                self._arena = private_arena(purpose, first_only=one_by_one)
            except ArenaError as shortage:
                raise RunError(f"checkpoint: staging buffers: {shortage}") from shortage
        self._staging = Staging(
            self._arena,
            layout,
            self._device,
            successors=self._successors,
            local_world_size=life.local_world_size,
            lent=self._writing.lent,
        )

    def _drop_staging(self, *, remove: bool) -> None:
        if self._staging is not None:
            self._staging.release()
            self._staging = None
        if self._arena is not None:
            self._arena.close(remove=remove)
            self._arena = None
