"""What a life needs before it can snapshot and save: the layout of the shards, who writes what, and the buffers.

All of it is kept from life to life and made anew only where something has moved.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from runner.checkpoint.arena import Arena, ArenaError, Purpose, open_arena, private_arena
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.layout import Layout, fingerprint, local_layout, placement
from runner.checkpoint.plan import FilePlan, plan_files, shards_to_write
from runner.checkpoint.shm import arena_path
from runner.checkpoint.staging import Staging
from runner.checkpoint.writing import Writing
from runner.errors import RunError
from runner.recipe.checkpoint import CheckpointSection
from runner.train.ports import Life, TrainState


class Preparation:
    """The prepared parts; `prepare` renews them at the start of a life.

    Args:
        run_id: names this run's shared memory on the node.
        device: where the state is.
        successors: whether a respawned worker may go on from this one's snapshots.
        skew: longest wait for the other ranks, which are still building their model.
        writing: the buffers' other reader; its writer process is ended where buffers are made anew.

    Attributes:
        fingerprint: of the model and the optimiser, the same on all ranks.
        tensors: name -> [dtype, global shape].
        files: what this rank writes.
        staging: the buffers.
    """

    fingerprint: str
    tensors: dict[str, list[Any]]
    files: tuple[FilePlan, ...] = ()
    staging: Staging | None = None

    def __init__(
        self,
        section: CheckpointSection,
        run_id: str,
        device: torch.device,
        writing: Writing,
        log: Any,
        *,
        successors: bool,
        skew: timedelta,
    ) -> None:
        self._skew = skew
        self._section = section
        self._run_id = run_id
        self._device = device
        self._writing = writing
        self._log = log
        self._successors = successors
        self._arena: Arena | None = None
        self._layouts: dict[str, Layout] = {}
        self._known: tuple[Any, Layout, str] | None = None  # what decides the layout, the layout, its digest
        self._planned: tuple[Any, tuple[FilePlan, ...]] | None = None

    def prepare(self, life: Life, state: TrainState, exchange: Exchange) -> tuple[Staging, Arena]:
        """Agree with all ranks on who writes what, and have buffers for this rank's shards.

        Raises:
            RunError: there is no memory for the buffers, or a rank does not come.
        """
        layout = self._lay_out(life, state)
        self.files = self._plan(layout, life.rank, exchange)
        return self._stage(layout, life)

    def release(self, *, remove: bool) -> None:
        """Give the buffers back; `remove`: no successor shall find them."""
        if self.staging is not None:
            self.staging.release()
            self.staging = None
        if self._arena is not None:
            self._arena.close(remove=remove)
            self._arena = None

    def _lay_out(self, life: Life, state: TrainState) -> Layout:
        """The layout of the local shards, that of the life before where nothing has moved."""
        signature = (life.rank, life.world_size, placement(state.tensors))
        if self._known is None or self._known[0] != signature:
            layout = local_layout(state.tensors)
            self._known = (signature, layout, layout.digest)
            self.fingerprint = fingerprint(state.tensors)
            self.tensors = {s.name: [s.dtype, list(s.shape)] for s in layout.shards}
        return self._known[1]

    def _plan(self, layout: Layout, rank: int, exchange: Exchange) -> tuple[FilePlan, ...]:
        """This rank's files. Layouts are sent only where a rank has not seen them in an earlier life."""
        assert self._known is not None
        mine = self._known[2]
        self._layouts[mine] = layout
        digests = exchange.gather(
            "layout-digest", [mine, self._planned is not None], self._skew, "the layout"
        )
        order = [digest for digest, _ in digests]
        if self._planned is not None and self._planned[0] == (rank, order):
            if not all(knows for _, knows in digests):
                exchange.put(f"layout/{rank}", layout.to_json())
            return self._planned[1]
        exchange.put(f"layout/{rank}", layout.to_json())
        for other, digest in enumerate(order):
            if digest not in self._layouts:
                sent = exchange.wait(f"layout/{other}", self._skew, f"the layout of rank {other}")
                self._layouts[digest] = Layout.from_json(sent)
        shards = shards_to_write([self._layouts[digest] for digest in order], rank)
        files = plan_files(shards, rank, self._section.writer_threads)
        self._planned = ((rank, order), files)
        return files

    def _stage(self, layout: Layout, life: Life) -> tuple[Staging, Arena]:
        assert self._known is not None
        section = self._section
        between = section.snapshot_every is not None and section.snapshot_every < section.every
        items = sum(len(file.shards) for file in self.files)
        purpose = Purpose(
            run_id=self._run_id,
            rank=life.rank,
            world_size=life.world_size,
            layout=self._known[2],
            fingerprint=self.fingerprint,
            # One is filled beside the newest. Between two saves another is read by the writer, or is what a
            # successor would use while the newest has no checksum yet.
            buffers=3 if between and (section.mode == "async" or self._successors) else 2,
            buffer_bytes=layout.nbytes,
            mailbox_bytes=(64 << 10) + 512 * items,
        )
        if self._arena is not None:
            if self.staging is not None and self._arena.purpose == purpose:
                return self.staging, self._arena
            self._writing.kill(
                "the staging buffers are laid out anew"
            )  # it may still read what is about to go
            self.release(remove=True)
        self._arena = self._open(purpose)
        self.staging = Staging(
            self._arena,
            layout,
            self._device,
            successors=self._successors,
            local_world_size=life.local_world_size,
            lent=self._writing.lent,
        )
        return self.staging, self._arena

    def _open(self, purpose: Purpose) -> Arena:
        """The arena that a predecessor left, or a new one; private memory where shared memory is too small."""
        one_by_one = self._device.type == "cuda"  # where the buffers are page-locked beside training
        try:
            return open_arena(arena_path(self._run_id, purpose.rank), purpose, first_only=one_by_one)
        except ArenaError as error:
            self._log.warning(
                "snapshots are private to this process", reason=str(error), remedy="enlarge /dev/shm",
                effect="a respawned worker loads from storage",
            )  # fmt: skip
        try:
            return private_arena(purpose, first_only=one_by_one)
        except ArenaError as shortage:
            raise RunError(f"checkpoint: staging buffers: {shortage}") from shortage
