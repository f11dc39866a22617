"""In-process restart of NVRx, and what differs in it between 0.4.1 and 0.7. Nothing else here asks for a version."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module, metadata
from importlib.util import find_spec
from types import FrameType
from typing import Any

from nvidia_resiliency_ext.inprocess import (
    CallWrapper,
    Compose,
    Wrapper,
    health_check,
)
from nvidia_resiliency_ext.inprocess.abort import Abort, AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
from nvidia_resiliency_ext.inprocess.completion import Completion
from nvidia_resiliency_ext.inprocess.exception import RestartAbort
from nvidia_resiliency_ext.inprocess.health_check import FaultCounter
from nvidia_resiliency_ext.inprocess.initialize import RetryController
from nvidia_resiliency_ext.inprocess.monitor_process import MonitorProcess
from nvidia_resiliency_ext.inprocess.progress_watchdog import ProgressWatchdog, Timestamp
from nvidia_resiliency_ext.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from nvidia_resiliency_ext.inprocess.store import BarrierTimeout
from nvidia_resiliency_ext.inprocess.store import TCPStore as _TCPStore

from runner.errors import InputError

__all__ = [
    "Abort",
    "AbortTorchDistributed",
    "ActivateAllRanks",
    "CallWrapper",
    "Completion",
    "Compose",
    "FaultCounter",
    "RestartAbort",
    "RetryController",
    "ShiftRanks",
    "Voucher",
    "WrapperStore",
    "cupti_manager",
    "make_wrapper",
    "monitor_process",
    "report_hang",
    "spare_watchdog",
]


@contextlib.contextmanager
def _hidden_local_rank() -> Iterator[None]:
    """From 0.5 the wrapper adds NVML health checks wherever LOCAL_RANK is set; without a GPU they fail, and every
    healthy rank dies at its first restart."""
    value = os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if value is not None:
            os.environ["LOCAL_RANK"] = value


def report_hang(call: CallWrapper) -> None:
    """What the monitor process reports where this rank exceeds the soft timeout; all ranks begin a new life."""
    call.monitor_process.record_interrupted([InterruptionRecord(call.state.rank, Interruption.SOFT_TIMEOUT)])


class Voucher:
    """Has NVRx's monitor process take this rank for alive, whether its main thread runs bytecode or not.

    For the first step of a process, in which calls into native code may well take longer than the soft timeout: kernels
    are loaded, ranks connect, blocks are compiled. ft_launcher has a timeout of its own for that, in-process restart
    has none.

    Args:
        call: of the life that begins its first step.
        longest: seconds; the monitor's own timeouts hold again from then on.
    """

    def __init__(self, call: CallWrapper, longest: float) -> None:
        self._watchdog = call.progress_watchdog
        self._alive = time.monotonic()  # the main thread is taken to have run bytecode then
        self._done = threading.Event()
        # The watchdog itself would go on to tell how long the main thread has been silent.
        self._watchdog.send = self._send
        threading.Thread(target=self._vouch, args=(longest,), name="first-step", daemon=True).start()

    def done(self) -> None:
        """The first step is over, or the life is: silence counts from now on."""
        self._done.set()

    @property
    def vouches(self) -> bool:
        """Whether this rank's silence means nothing yet."""
        return not self._done.is_set()

    def _send(self) -> None:
        seen = self._watchdog.timestamp
        told = Timestamp(auto=max(seen.auto, self._alive), manual=None if self.vouches else seen.manual)
        self._watchdog.monitor_process.send_timestamp(told)

    def _vouch(self, longest: float) -> None:
        end = time.monotonic() + longest
        while self.vouches and time.monotonic() < end:
            self._alive = time.monotonic()
            self._send()
            self._done.wait(self._watchdog.interval.total_seconds())
        self._done.set()


_SHORTLY = 0.01  # seconds
_CALLBACK = ProgressWatchdog.__module__


def spare_watchdog(number: signal.Signals) -> None:
    """Keep the handler of a signal, which may raise, out of the callback of NVRx's watchdog.

    The callback runs in the main thread, in the middle of anything. What is raised in it is lost, and so is its count,
    for which NVRx waits without a limit when the life ends. So the signal comes once more, shortly afterwards.
    """
    handler = signal.getsignal(number)
    assert callable(handler)

    def spared(number: int, frame: FrameType | None) -> None:
        if _in_callback(frame):
            # A thread may be started here: NVRx waits for the end of the callback before it raises anything.
            threading.Timer(_SHORTLY, os.kill, (os.getpid(), number)).start()
        else:
            handler(number, frame)

    signal.signal(number, spared)


def _in_callback(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == _CALLBACK:
            return True
        frame = frame.f_back
    return False


_FLUSH_PATIENCE = 2.0  # seconds


def monitor_process(call: CallWrapper, *, before_end: Callable[[], None]) -> int:
    """The process that watches this one, in all of its lives.

    Args:
        before_end: called when it is no more needed, before it is told so.
    """
    call.monitor_process.before_end = before_end
    return int(call.monitor_process.process_monitor_proc.pid)


def _end_monitor(self: Any) -> None:
    """Tell the monitor to end. NVRx waits until its queue is read, for ever where the monitor was killed."""
    getattr(self, "before_end", lambda: None)()  # there is none where the first life has not begun
    self.should_stop.set()
    self.msg_queue.close()
    feeder = self.msg_queue._thread
    if feeder is not None:
        feeder.join(_FLUSH_PATIENCE)
    self.msg_queue.cancel_join_thread()


MonitorProcess.shutdown = _end_monitor


_CHUNK = timedelta(milliseconds=100)


class WrapperStore(_TCPStore):
    """The store of the wrapper, which connects to it as soon as it has its monitor process.

    Args:
        monitored: called then, in this process alone; the monitor process makes a store of its own.
        parting: the longest that rank 0, which serves the store, waits in its end for the others to leave.
        arguments: NVRx's.
    """

    def __init__(
        self, *, monitored: tuple[int, Callable[[], None]], parting: timedelta, **arguments: Any
    ) -> None:
        process, call = monitored
        self._parting = parting
        if os.getpid() == process:
            call()
        super().__init__(**arguments)

    def termination_barrier(self, ranks: Iterable[int], rendezvous_count: int, timeout: timedelta) -> None:
        """Leave.

        NVRx has rank 0 wait for the others without a limit, in one call into native code: where another hangs, its own
        monitor kills it for that.
        """
        # Who has not come by then is not waited for: it is killed, by its own monitor.
        with contextlib.suppress(BarrierTimeout):
            self.reentrant_barrier(
                ranks=ranks,
                group_name=self.TERMINATION_BARRIER,
                rendezvous_count=rendezvous_count,
                timeout=min(timeout, self._parting),
                timeout_chunk=_CHUNK,
            )


_CHECKS = {
    "cuda": "CudaHealthCheck",
    "gpu": "ChainedGPUHealthCheck",
    "nvlink": "ChainedNVLHealthCheck",
    "nic": "ChainedNicHealthCheck",
}


def health_checks(names: Sequence[str], local_rank: int) -> list[Any]:
    """The health checks of these names for the GPU of this rank.

    Raises:
        InputError: this release of NVRx does not have one of them.
    """
    found = []
    for name in names:
        kind = getattr(health_check, _CHECKS[name], None)
        if kind is None:
            raise InputError(
                f"recovery.inprocess.health_checks: {name} needs NVRx 0.5 or later, and "
                f"{metadata.version('nvidia-resiliency-ext')} is installed; leave it out"
            )
        found.append(kind() if name == "cuda" else kind(device_index=local_rank))
    return found


def make_wrapper(
    *, gpus: bool, checks: Sequence[str] | None, local_rank: int, counter: FaultCounter, **settings: Any
) -> Wrapper:
    """`inprocess.Wrapper` with these settings.

    Args:
        gpus: whether this rank computes on one; without, no device is checked.
        checks: names of health checks; None for those that the release makes by itself.
        local_rank: index of the GPU.
        counter: the fault counter, which is a health check as well.
    """
    found = health_checks(("cuda",) if checks is None else checks, local_rank) if gpus else []
    with contextlib.nullcontext() if gpus and checks is None else _hidden_local_rank():
        return Wrapper(health_check=Compose(*found, counter), **settings)


def cupti_manager() -> Any:
    """NVRx's access to CUPTI, which knows the time of every kernel.

    Raises:
        ImportError: its compiled part was built for another CUDA than is here, as 0.4.1's for CUDA 12.
    """
    package = "straggler" if find_spec("nvidia_resiliency_ext.straggler") else "attribution.straggler"
    return import_module(f"nvidia_resiliency_ext.{package}.cupti").CuptiManager()
