"""Snapshots: the live state is copied into a buffer of the arena, beside training where there is a GPU, and back.

What is copied becomes valid (`buffers`) once the copy was seen complete while the life was not frozen; only valid
content is written, restored or found by a successor. Three traps (each has a test):

- Work queued behind an aborted collective still runs, so a copy's event may complete with garbage behind it.
  Completion therefore counts only if seen before the abort: `freeze` runs ahead of it, takes a last look, and
  nothing becomes valid afterwards.
- Buffers of the model may change in forward. They are copied first, and the compute stream waits for that copy
  before the next forward; parameters and moments change only in the update, which waits for the whole copy.
- A rank may die inside a copy: the buffer's note in the arena is erased before the copy and written after it
  (`buffers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from runner.checkpoint.arena import Arena
from runner.checkpoint.buffers import Buffer, Buffers
from runner.checkpoint.layout import Layout, local_tensor
from runner.checkpoint.pinning import PinnedPages
from runner.checkpoint.writer import view
from runner.errors import RunError
from runner.train.ports import TrainState

_POLL = (
    0.0002  # seconds between two looks at a CUDA event; a look can be interrupted, a wait inside CUDA cannot
)
_LEFTOVER_PATIENCE = 60.0  # seconds a copy of an aborted life may take to run out


class Staging:
    """The snapshots of one rank, over all lives of its process.

    Args:
        arena: holds the bytes; must have been made for `layout`.
        device: where the live tensors are; pins the arena where it is a GPU.
        successors: whether another process may go on from this arena, so that snapshots are checksummed.
        local_world_size: ranks of this node, which share its cores.
        lent: the buffers that writers read.
    """

    def __init__(
        self,
        arena: Arena,
        layout: Layout,
        device: torch.device,
        *,
        successors: bool,
        local_world_size: int,
        lent: Callable[[], list[Buffer]],
    ) -> None:
        self.arena = arena
        self.layout = layout
        self._cuda = device.type == "cuda"
        self.buffers = Buffers(
            arena, successors=successors, beside=self._cuda, local_world_size=local_world_size, lent=lent
        )
        self._views = [[view(arena, b.index, s) for s in layout.shards if s.nbytes] for b in self.buffers]
        self._names = [s.name for s in layout.shards if s.nbytes]
        self.immediate = not self._cuda  # a copy on the CPU is complete when `begin` returns
        self._mutable_copied: torch.cuda.Event | None = None
        self._frozen = False
        self._state: TrainState | None = None
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._pages = PinnedPages(arena)
            if self.buffers.newest() is None:
                self._pages.begin(0)

    # --- life cycle

    def bind(self, state: TrainState) -> None:
        """Start a life: what the life before left unfinished is dropped, its queued copies have run out."""
        if self._cuda:
            left = torch.cuda.Event()
            left.record(self._stream)
            end = time.monotonic() + _LEFTOVER_PATIENCE
            while not left.query():
                if time.monotonic() > end:
                    raise RunError(
                        "checkpoint: a snapshot of the life before still runs; the GPU does not answer"
                    )
                time.sleep(_POLL)
        self.buffers.drop_pending()
        self._mutable_copied = None
        self._state = state
        self._frozen = False

    def freeze(self) -> None:
        """From now on nothing becomes valid. Called from any thread, ahead of the abort; does not block."""
        try:
            self._look()
        except RuntimeError:  # the GPU's context is lost, and the copy with it
            pass
        finally:
            self._frozen = True

    def reject(self) -> None:
        """Forget the snapshot of the live state's step, valid or not: that step turned out bad."""
        self.buffers.drop_pending()
        if self._state is not None and (bad := self.buffers.at(self._state.step)) is not None:
            self.buffers.forget(bad)

    def release(self) -> None:
        """Unpin the memory."""
        self.buffers.close()
        if self._cuda:
            self._stream.synchronize()
            self._pages.release()

    # --- snapshots

    def started(self) -> None:
        """A step is over: memory that was not needed to get there may be made ready."""
        if self._cuda:
            self._pages.go_on()

    def ready(self, buffer: Buffer) -> bool:
        """Whether a snapshot may go to `buffer` without waiting for its memory."""
        return not self._cuda or self._pages.ready(buffer.index)

    def begin(self, buffer: Buffer) -> None:
        """Start to copy the live state into `buffer`."""
        assert self._state is not None
        state = self._state
        self.buffers.claim(buffer, state.step, state.data)
        places = dict(zip(self._names, self._views[buffer.index], strict=True))
        if not self._cuda:
            self._copy(places, self._names)
            self.buffers.seal(buffer)
            self.buffers.pending = buffer
            return
        self._pages.wait(buffer.index)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            mutable = [name for name in self._names if name in state.forward_mutable]
            if mutable:
                self._copy(places, mutable)
                self._mutable_copied = torch.cuda.Event()
                self._mutable_copied.record()
            self._copy(places, (name for name in self._names if name not in state.forward_mutable))
            buffer.copied = torch.cuda.Event()
            buffer.copied.record()
        self.buffers.pending = buffer
        self.buffers.seal(buffer)

    def before_forward(self) -> None:
        """Let the compute stream wait for the copy of what forward may change; the host does not wait."""
        if self._mutable_copied is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._mutable_copied)
            self._mutable_copied = None

    def settle(self, beat: Callable[[], None]) -> Buffer | None:
        """Wait for the running copy; returns the buffer that became valid, None where none did."""
        buffer = self.buffers.pending
        if buffer is None:
            return None
        while self.buffers.pending is buffer and not self._frozen and not self._look():
            beat()
            time.sleep(_POLL)
        return buffer if buffer.valid else None

    def _look(self) -> bool:
        """Mark the pending copy valid if it is complete. Completion first, then the flag: see the module text."""
        buffer = self.buffers.pending
        if buffer is None:
            return True
        if buffer.copied is not None and not buffer.copied.query():
            return False
        if self._frozen:
            return False
        self.buffers.accept(buffer)
        return True

    # --- restore

    def load_begin(self) -> Buffer:
        """A buffer to read a checkpoint into, and claim it."""
        buffer = self.buffers.free()
        if buffer is None:
            raise RunError("checkpoint: no staging buffer is free to load into; a writer still reads them")
        self.buffers.claim(buffer, -1, {})
        if self._cuda:
            self._pages.begin(buffer.index)
        return buffer

    def load_end(self, buffer: Buffer, step: int, data: dict[str, Any]) -> None:
        """The bytes in `buffer` are the state after `step`: as good as a snapshot."""
        buffer.step, buffer.data = step, data
        self.buffers.seal(buffer)
        self.buffers.accept(buffer)

    def restore(self, buffer: Buffer) -> None:
        """Copy a buffer into the live tensors; newer content that not all ranks have is forgotten."""
        assert self._state is not None
        if self._cuda:
            self._pages.wait(buffer.index)
        places = dict(zip(self._names, self._views[buffer.index], strict=True))
        with torch.no_grad():
            torch._foreach_copy_(
                [local_tensor(self._state.tensors[name]) for name in self._names],
                [places[name] for name in self._names],
                non_blocking=self._cuda,
            )
        if self._cuda:
            torch.cuda.current_stream(self._stream.device).synchronize()
        for other in self.buffers:
            if other.step > buffer.step:
                self.buffers.forget(other)

    # --- inside

    def _copy(self, places: dict[str, torch.Tensor], names: Iterable[str]) -> None:
        assert self._state is not None
        chosen = list(names)
        if chosen:
            sources = [local_tensor(self._state.tensors[name]) for name in chosen]
            torch._foreach_copy_([places[name] for name in chosen], sources, non_blocking=self._cuda)
