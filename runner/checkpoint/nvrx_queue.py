"""NVRx's persistent checkpoint writer, the same for every version from 0.4.1 to 0.7.

What differs, and why this module reaches past the public names:
- 0.4.1 has `AsyncCallsQueue(persistent)`; from 0.6 there are also `cpu_shm_mode` (the writer needs no GPU),
  `is_daemon` and `close(abort=True)`.
- `AsyncCallsQueue.close` and `PersistentAsyncCaller.close` wait without a bound on a writer that may be dead, and
  garbage collection calls them. Here every wait is bounded and the end is SIGKILL.
- A request with a `preload_fn` makes `schedule_async_request` wait, without a bound, until the writer has called
  it. Nothing has to be preloaded here (the bytes are staged already), so requests carry none and never block.
- The write functions take the same things in a different order (`open_file`, the name of the index argument).
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import multiprocessing.synchronize
import multiprocessing.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync

from runner.checkpoint import follow

_STOP_PATIENCE = 2.0  # seconds an idle writer gets to leave by itself

WriteBucket = tuple[str, str, tuple[list[Any], list[Any]]]  # path, storage key, (bytes items, tensor items)


@contextlib.contextmanager
def _follow_as_main() -> Iterator[None]:
    """Make a spawned process run `follow` as its main module, instead of this program's (and all that it imports)."""
    main = sys.modules["__main__"]
    saved: dict[str, Any] = {
        key: main.__dict__.pop(key) for key in ("__file__", "__spec__") if key in main.__dict__
    }
    main.__spec__ = ModuleSpec(follow.__name__, None)
    os.environ[follow.PARENT_VARIABLE] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[follow.PARENT_VARIABLE]
        del main.__spec__
        main.__dict__.update(saved)


class WriterQueue:
    """One writer process of this rank. For one thread, but for `death`.

    Args:
        rank: this rank, for NVRx's log.
        prepare: called in the writer process before the first save (module-level function).
    """

    def __init__(self, rank: int, prepare: Callable[[], None]) -> None:
        supported = inspect.signature(
            AsyncCallsQueue.__init__
        ).parameters  # the class has a metaclass's signature
        options: dict[str, Any] = {"persistent": True}
        if "cpu_shm_mode" in supported:
            options["cpu_shm_mode"] = True
        if "is_daemon" in supported:
            options["is_daemon"] = True
        self._queue = AsyncCallsQueue(**options)
        self._caller = self._queue._get_async_caller()
        self._caller.rank = rank
        self._named = True
        self._ended = "it was stopped"
        with _follow_as_main():
            self._queue.schedule_async_request(AsyncRequest(prepare, (), []))
        atexit.register(self.kill)

    def submit(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Hand one call to the writer. Does not wait; arguments are pickled, so keep them small and plain."""
        self._queue.schedule_async_request(AsyncRequest(function, args, []))

    def idle(self) -> bool:
        """Whether the writer has finished everything handed to it."""
        self._queue.maybe_finalize_async_calls(blocking=False, no_dist=True)
        done = self._queue.get_num_unfinalized_calls() == 0
        if done and self._named:
            self._forget_names()
        return done

    def death(self) -> str | None:
        """How the writer ended, None while it lives."""
        process = self._caller.process
        if process is None:
            return self._ended
        if process.is_alive():
            return None
        code = process.exitcode
        return (
            f"it was killed by signal {-code}" if code is not None and code < 0 else f"it exited with {code}"
        )

    def stop(self) -> None:
        """Let an idle writer leave by itself; kill it where it does not within seconds."""
        process = self._caller.process
        if process is not None and self.death() is None and self.idle():
            self._caller.queue.put("DONE")
            process.join(_STOP_PATIENCE)
        self.kill()

    def kill(self, reason: str | None = None) -> None:
        """End the writer now, whatever it does, and leave nothing that a later clean-up could wait for.

        Args:
            reason: what `death` says from now on.
        """
        self._ended = reason or self._ended
        atexit.unregister(self.kill)
        process = self._caller.process
        if process is not None:
            process.kill()
            process.join(10)
            self._caller.process = None
        self._queue.async_calls.clear()
        for channel in (self._caller.queue, self._caller.preload_q, self._caller.comp_q):
            channel.cancel_join_thread()
            channel.close()
        self._forget_names()

    def _forget_names(self) -> None:
        """Unlink the queues' semaphores now that both sides hold them, so that SIGKILL leaves none in /dev/shm."""
        self._named = False
        channels = (self._caller.queue, self._caller.preload_q, self._caller.comp_q)
        names = {lock._semlock.name for channel in channels for lock in _locks(channel)}
        semaphore: Any = multiprocessing.synchronize.SemLock
        registry: dict[Any, Any] = vars(multiprocessing.util)["_finalizer_registry"]
        for finalizer in list(registry.values()):
            if finalizer._callback is semaphore._cleanup and finalizer._args[0] in names:
                finalizer()  # unlinks, tells the resource tracker, and takes itself out of the registry


def _locks(holder: Any) -> Iterator[Any]:
    for value in vars(holder).values():
        if isinstance(value, multiprocessing.synchronize.SemLock):
            yield value
        elif isinstance(value, multiprocessing.synchronize.Condition):
            yield from _locks(value)


def write_buckets(folder: Path, buckets: list[WriteBucket]) -> list[Any]:
    """Write each bucket into its file through NVRx's writer, one thread a file; fsynced. For the writer process.

    Returns:
        the DCP `WriteResult` of every item.

    Raises:
        Exception: whatever the first failed bucket raised.
    """
    # Every file gets a checksum of its own; the zip container's CRC would cost five times the write.
    torch.serialization.set_crc32_options(False)
    write = FileSystemWriterAsync.write_preloaded_data
    writer = FileSystemWriterAsync(folder)
    given: dict[str, Any] = {
        "transform_list": [writer.transforms] if hasattr(writer, "transforms") else [],
        "use_fsync": True,
    }
    parameters = inspect.signature(write).parameters
    if "open_file" in parameters:
        given["open_file"] = open
    index_name = next(name for name in parameters if name.startswith("local_"))
    results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threads = []
    for index, bucket in enumerate(buckets):
        count: queue.Queue[int] = queue.Queue()
        count.put(index)
        call = {**given, index_name: index, "write_bucket": bucket}
        call |= {"results_queue": results, "count_queue": count}
        threads.append(threading.Thread(target=write, kwargs=call, name=f"write-{bucket[1]}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome: dict[int, Any] = {}
    while not results.empty():
        index, result = results.get()
        outcome[index] = result
    for index in range(len(buckets)):
        result = outcome.get(index)
        if isinstance(result, BaseException):
            raise result
        if result is None:
            raise RuntimeError(f"NVRx returned nothing for {buckets[index][0]}")
    return [result for index in range(len(buckets)) for result in outcome[index]]
