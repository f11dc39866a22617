"""Checksums snapshots for a successor process, beside training: one at a time, and always the newest."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from runner.checkpoint.arena import Arena

_POLL = 0.002  # seconds; a thread that spins in `Event.synchronize` slows the main thread's kernel launches
_MOST_THREADS = 8


def hashing_pool(local_world_size: int) -> ThreadPoolExecutor:
    """Threads for checksums: half of this rank's share of the cores, and no more than memory can feed."""
    share = (os.cpu_count() or 1) // local_world_size // 2
    return ThreadPoolExecutor(max(1, min(_MOST_THREADS, share)), thread_name_prefix="seal")


class Sealer(threading.Thread):
    """A thread that waits for a copy, takes its checksum, and reports it.

    Args:
        arena: holds the buffers.
        local_world_size: ranks of this node, which share its cores.
        done: called with (buffer index, generation, checksum) in this thread.
    """

    def __init__(self, arena: Arena, local_world_size: int, done: Callable[[int, int, str], None]) -> None:
        super().__init__(name="seal", daemon=True)
        self._arena = arena
        self._done = done
        self._wanted: tuple[int, int, torch.cuda.Event | None] | None = None
        self._running: int | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._pool = hashing_pool(local_world_size)
        self.start()

    @property
    def running(self) -> int | None:
        """Index of the buffer that is being read now."""
        return self._running

    def seal(self, buffer: int, generation: int, copied: torch.cuda.Event | None) -> None:
        """Ask for the checksum of a buffer once `copied` is complete; forgets what was asked for before."""
        with self._changed:
            self._wanted = (buffer, generation, copied)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; what it reads now is finished first."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self.join(10)
        self._pool.shutdown(wait=False)

    def run(self) -> None:
        """The thread."""
        while True:
            with self._changed:
                self._running = None
                while self._wanted is None and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                assert self._wanted is not None
                buffer, generation, copied = self._wanted
                if copied is None or copied.query():
                    self._wanted = None
                    self._running = buffer
            if self._running is None:
                time.sleep(_POLL)
                continue
            self._done(buffer, generation, self._arena.checksum(buffer, self._pool))
