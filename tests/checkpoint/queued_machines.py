"""Where work is queued: two GPUs under NCCL, or two CPU ranks under gloo with a stream made of a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from ckpt_world import CPU, TestLife
from nvidia_resiliency_ext.inprocess.abort import AbortTorchDistributed

from runner.checkpoint import preparation
from runner.checkpoint.buffers import Buffer
from runner.checkpoint.staging import Staging
from runner.recovery.sockets import shut_down, tcp_sockets


class Machine(Protocol):
    """What a case needs of a device: everything handed to `queue` runs in order, and the host does not wait."""

    device: torch.device

    def life(self, store: dist.Store, rank: int, attempt: str, in_process: bool) -> QueuedLife: ...
    def queue(self, work: Callable[[], object]) -> None: ...
    def reduce(self, tensor: torch.Tensor, group: Any) -> None: ...
    def synchronize(self) -> None: ...


class QueuedLife(TestLife):
    """A life with a second group, for collectives that never meet."""

    __test__ = False
    other: Any

    def abort(self) -> None:
        """Every rank freezes before any rank aborts, as the recovery layers see to."""
        for hook in self._hooks:
            hook()
        self.store.set(f"frozen/{self.rank}", "yes")
        self.store.wait([f"frozen/{rank}" for rank in range(self.world_size)], timedelta(seconds=30))
        self.cut()

    def cut(self) -> None:
        raise NotImplementedError


class NcclLife(QueuedLife):
    __test__ = False

    def join(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl", store=self._group_store, rank=self.rank, world_size=self.world_size,
            timeout=timedelta(seconds=120), device_id=device,
        )  # fmt: skip
        self.other = dist.new_group(backend="nccl")
        for group in (None, self.other):  # connect now: later the host would block
            dist.all_reduce(torch.ones(1, device=device), group=group)
        torch.cuda.synchronize()

    def cut(self) -> None:
        AbortTorchDistributed()(None)  # as NVRx does, in a thread for every group


class Gpus:
    """CUDA's own stream."""

    def __init__(self, rank: int) -> None:
        self.device = torch.device("cuda", rank)

    def life(self, store: dist.Store, rank: int, attempt: str, in_process: bool) -> NcclLife:
        return NcclLife(store, rank, 2, attempt, in_process)

    def queue(self, work: Callable[[], object]) -> None:
        work()

    def reduce(self, tensor: torch.Tensor, group: Any) -> None:
        dist.all_reduce(tensor, group=group)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class GlooLife(QueuedLife):
    __test__ = False

    def join(self, device: torch.device) -> None:
        self._foreign = tcp_sockets()
        super().join(device)
        self.other = dist.new_group(backend="gloo")

    def cut(self) -> None:
        shut_down(tcp_sockets() - self._foreign)  # gloo has no abort; this is what a layer does instead


class Stream(threading.Thread):
    """Runs what it is given, in order. A collective that fails does not keep what is queued behind it from running."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Mark]] = queue.SimpleQueue()
        self.start()

    def put(self, work: Callable[[], object]) -> Mark:
        mark = Mark()
        self._work.put((work, mark))
        return mark

    def run(self) -> None:
        while True:
            work, mark = self._work.get()
            try:
                work()
            except RuntimeError as error:
                mark.error = error
            mark.done = True


class Mark:
    """Stands in for a CUDA event."""

    done = False
    error: RuntimeError | None = None

    def query(self) -> bool:
        return self.done


class Threads:
    """A stream made of a thread; snapshots are copied on it too."""

    device = CPU

    def __init__(self, rank: int) -> None:
        self._stream = stream = Stream()

        class QueuedStaging(Staging):
            """The copies of a snapshot are queued, as on a GPU."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.immediate = False

            def begin(self, buffer: Buffer) -> None:
                super().begin(buffer)
                buffer.copied = stream.put(lambda: None)  # type: ignore[assignment]

            def _copy(self, places: dict[str, torch.Tensor], names: Iterable[str]) -> None:
                chosen, copy = list(names), super()._copy
                stream.put(lambda: copy(places, chosen))

        preparation.Staging = QueuedStaging  # type: ignore[misc]

    def life(self, store: dist.Store, rank: int, attempt: str, in_process: bool) -> GlooLife:
        return GlooLife(store, rank, 2, attempt, in_process)

    def queue(self, work: Callable[[], object]) -> None:
        self._stream.put(work)

    def reduce(self, tensor: torch.Tensor, group: Any) -> None:
        self._stream.put(lambda: dist.all_reduce(tensor, group=group))

    def synchronize(self) -> None:
        mark, end = self._stream.put(lambda: None), time.monotonic() + 60
        while not mark.query():
            assert time.monotonic() < end, "what is queued does not run"
            time.sleep(0.001)


def machine(kind: str, rank: int) -> Machine:
    return Gpus(rank) if kind == "nccl" else Threads(rank)
