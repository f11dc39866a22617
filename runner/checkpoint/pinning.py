"""Page-locked buffers: without it the GPU copies at a fortieth of the speed, and the host waits for every copy."""

from __future__ import annotations

import threading
import time

import torch

from runner.checkpoint.arena import Arena
from runner.errors import RunError

_POLL = 0.001
_PATIENCE = 120.0  # seconds for one buffer; a GB takes a tenth of a second


class PinnedPages:
    """Makes and page-locks the buffers of an arena one by one, in a thread.

    It begins with the buffer that is needed first. A predecessor's buffers are found before the ranks agree on the one
    that all of them hold, so the thread waits to be told. The others follow when the first step is over: the
    driver does one thing at a time, and until then whatever it does for them holds up the start.

    Args:
        arena: the buffers; the pages of those after the first need not exist yet.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        count = arena.purpose.buffers
        self._size = arena.buffer_stride
        whole = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._starts = [whole.data_ptr() + arena.buffer_start(index) for index in range(count)]
        self._done = [threading.Event() for _ in range(count)]
        self._problem: str | None = None
        self._others = threading.Event()
        self._stopped = False
        self._device = torch.cuda.current_device()
        self._first = -1
        self._thread: threading.Thread | None = None

    def begin(self, first: int) -> None:
        """Begin with buffer `first`, where nothing has begun yet."""
        if self._thread is None:
            self._first = first
            order = sorted(range(len(self._starts)), key=lambda index: index != first)
            self._thread = threading.Thread(target=self._pin, args=(order,), daemon=True, name="pin")
            self._thread.start()

    def go_on(self) -> None:
        """Go on with the other buffers."""
        self._others.set()

    def ready(self, index: int) -> bool:
        """Whether a buffer is page-locked; raises nothing."""
        return self._done[index].is_set()

    def wait(self, index: int) -> None:
        """Wait until a buffer is page-locked.

        Raises:
            RunError: it cannot be.
        """
        self.begin(index)
        if index != self._first:
            self.go_on()
        end = time.monotonic() + _PATIENCE
        while not self._done[index].is_set():  # polled, so that a restart's exception can reach this thread
            if self._problem is not None or time.monotonic() > end:
                raise RunError(
                    f"checkpoint: {len(self._starts)} x {self._size} bytes of host memory cannot be pinned "
                    f"({self._problem or 'it takes too long'}); raise the container's memory limit or its "
                    "locked-memory limit (ulimit -l)"
                )
            time.sleep(_POLL)

    def release(self) -> None:
        """Unlock the pages. Nothing may be copied to or from them any more."""
        self._stopped = True
        self._others.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        for start, done in zip(self._starts, self._done, strict=True):
            if done.is_set():
                torch.cuda.cudart().cudaHostUnregister(start)

    def _pin(self, order: list[int]) -> None:
        torch.cuda.set_device(self._device)
        runtime = torch.cuda.cudart()
        for index in order:
            if index != self._first:
                self._others.wait()
            if self._stopped:
                return
            try:
                self._arena.make_buffer(index)
            except OSError as error:
                self._problem = f"making its pages: {error.strerror}"
                return
            answer = runtime.cudaHostRegister(self._starts[index], self._size, 0)
            if answer != runtime.cudaError.success:
                self._problem = f"cudaHostRegister: error {int(answer)}"  # some have no name in torch
                return
            self._done[index].set()
