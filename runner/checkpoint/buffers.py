"""The staging buffers of one rank: which content counts, what a successor would find, and which may be overwritten.

A buffer's content is *valid* once its copy was seen complete while the life was not frozen (`staging` decides that).
Another process may go on from it where its note in the arena says so: step and checksum. The note is erased before
anything is written into the buffer and written back after it: a rank that dies inside a copy leaves nothing that looks
whole.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from runner.checkpoint.arena import Arena, ArenaError
from runner.checkpoint.sealer import Sealer, hashing_pool


@dataclass
class Buffer:
    """One staging buffer."""

    index: int
    step: int = -1
    valid: bool = False
    generation: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    checksum: str | None = None
    copied: torch.cuda.Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Buffers:
    """All buffers of an arena.

    Args:
        arena: holds their bytes.
        successors: whether another process may go on from this arena, so that snapshots are checksummed.
        beside: take checksums in a thread, beside training; else at once.
        local_world_size: ranks of this node, which share its cores.
        lent: the buffers that writers read.

    Attributes:
        pending: the buffer whose copy is not seen complete yet.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        successors: bool,
        beside: bool,
        local_world_size: int,
        lent: Callable[[], list[Buffer]],
    ) -> None:
        self.pending: Buffer | None = None
        self._arena = arena
        self._successors = successors
        self._lent = lent
        self._all = [Buffer(index) for index in range(arena.purpose.buffers)]
        self._recover(local_world_size)
        self._sealer = Sealer(arena, local_world_size, self._sealed) if beside and successors else None

    def _recover(self, local_world_size: int) -> None:
        """Take over what a predecessor left, where its checksums hold."""
        arena = self._arena
        with hashing_pool(local_world_size) as pool:
            for buffer in self._all:
                note = arena.read_note(buffer.index) if arena.recovered and self._successors else None
                if note is None or arena.checksum(buffer.index, pool) != note["checksum"]:
                    arena.write_note(buffer.index, None)
                else:
                    buffer.step, buffer.data = note["step"], note["data"]
                    buffer.checksum, buffer.valid = note["checksum"], True

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._all)

    def newest(self) -> Buffer | None:
        """The valid buffer of the highest step."""
        return max((b for b in self._all if b.valid), key=lambda b: b.step, default=None)

    def steps(self) -> list[int]:
        """Steps of the valid buffers."""
        return sorted(b.step for b in self._all if b.valid)

    def at(self, step: int) -> Buffer | None:
        """The valid buffer of `step`."""
        return next((b for b in self._all if b.valid and b.step == step), None)

    def free(self) -> Buffer | None:
        """A buffer that may be overwritten.

        It is neither the newest valid one, nor the newest that a successor could use, nor about to become that,
        and no writer reads it.
        """
        newest = self.newest()
        sealed = max((b for b in self._all if b.valid and b.checksum), key=lambda b: b.step, default=None)
        sealing = self._sealer.running if self._sealer is not None else None
        kept = [newest, self.pending, sealed, *self._lent()]
        candidates = [b for b in self._all if not any(b is k for k in kept) and b.index != sealing]
        return min(candidates, key=lambda b: (b.valid, b.step), default=None)

    def claim(self, buffer: Buffer, step: int, data: dict[str, Any]) -> None:
        """The buffer is about to be written; what was in it is gone."""
        with buffer.lock:
            self._arena.write_note(buffer.index, None)
            buffer.valid = False
            buffer.generation += 1
            buffer.step, buffer.data = step, dict(data)
            buffer.checksum = buffer.copied = None

    def seal(self, buffer: Buffer) -> None:
        """Have its checksum taken, once its copy is complete; for successors, else there is nothing to do."""
        if self._sealer is not None:
            self._sealer.seal(buffer.index, buffer.generation, buffer.copied)
        elif self._successors:
            buffer.checksum = self._arena.checksum(buffer.index)

    def accept(self, buffer: Buffer) -> None:
        """Its content counts from now on."""
        buffer.valid = True
        if buffer is self.pending:
            self.pending = None
        self._publish(buffer)

    def forget(self, buffer: Buffer) -> None:
        """Its content no longer counts."""
        with buffer.lock:
            buffer.valid = False
            buffer.generation += 1
            self._arena.write_note(buffer.index, None)

    def drop_pending(self) -> None:
        """The copy that runs will not count."""
        buffer, self.pending = self.pending, None
        if buffer is not None:
            with buffer.lock:
                buffer.generation += 1
                buffer.valid = False

    def memory_of(self, buffer: Buffer) -> memoryview:
        """The bytes of a buffer."""
        return self._arena.buffer(buffer.index)

    def close(self) -> None:
        """Stop taking checksums."""
        if self._sealer is not None:
            self._sealer.stop()

    def _sealed(self, index: int, generation: int, checksum: str) -> None:
        """The sealer has the checksum of a copy; whether that copy counts is decided elsewhere."""
        buffer = self._all[index]
        with buffer.lock:
            if buffer.generation != generation:
                return
            buffer.checksum = checksum
        self._publish(buffer)

    def _publish(self, buffer: Buffer) -> None:
        with buffer.lock:
            if buffer.valid and buffer.checksum is not None:
                note = {"step": buffer.step, "data": buffer.data, "checksum": buffer.checksum}
                # A stream's state may outgrow the note: this process still has it, a successor loads from storage.
                with contextlib.suppress(ArenaError):
                    self._arena.write_note(buffer.index, note)
