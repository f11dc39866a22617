"""What differs between the NVRx versions that recovery uses (0.4.1 to 0.7). Nothing else here asks for a version."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from types import FrameType
from typing import Any

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from nvidia_resiliency_ext.fault_tolerance.data import InitMsg, OkMsg
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClientError
from nvidia_resiliency_ext.fault_tolerance.utils import read_obj_from_ipc_socket, write_object_to_ipc_socket
from nvidia_resiliency_ext.inprocess import (
    CallWrapper,
    Compose,
    Wrapper,
    health_check,
)
from nvidia_resiliency_ext.inprocess.abort import Abort, AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
from nvidia_resiliency_ext.inprocess.exception import RestartAbort
from nvidia_resiliency_ext.inprocess.health_check import FaultCounter
from nvidia_resiliency_ext.inprocess.initialize import RetryController
from nvidia_resiliency_ext.inprocess.monitor_process import MonitorProcess
from nvidia_resiliency_ext.inprocess.progress_watchdog import ProgressWatchdog, Timestamp
from nvidia_resiliency_ext.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from nvidia_resiliency_ext.inprocess.store import TCPStore as _TCPStore

from runner.errors import InputError, MonitorGoneError

__all__ = [
    "Abort",
    "AbortTorchDistributed",
    "ActivateAllRanks",
    "CallWrapper",
    "Compose",
    "FaultCounter",
    "RankMonitorClientError",
    "RestartAbort",
    "RetryController",
    "ShiftRanks",
    "Voucher",
    "WrapperStore",
    "connect_to_rank_monitor",
    "cupti_manager",
    "make_wrapper",
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


ANSWER_TIMEOUT = 60.0  # seconds


def connect_to_rank_monitor() -> RankMonitorClient:
    """A connection to this rank's monitor, which a fault in start-up cannot spoil for the lives to come.

    The monitor outlives the workers. Where it loses two connections in a row that brought no heartbeat, as with two
    faults before the first step, it counts its rank as given up for good, and refuses heartbeats from then on. So one
    is sent at once. It would make the timeout of steps hold for the whole start-up: the message that opened the
    connection, sent once more, makes the monitor wait for a first heartbeat again.

    NVRx up to 0.5 waits for an answer to each heartbeat, for ever where the monitor is frozen. Here the wait has a
    limit, after which the heartbeat fails; the opening itself has none, and is a part of start-up.

    Raises:
        MonitorGoneError: nobody listens where the monitor did.
        RankMonitorClientError: the monitor refuses.
    """
    client = RankMonitorClient()
    try:
        client.init_workload_monitoring()
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise MonitorGoneError(
            f"the monitor of rank {os.environ['RANK']} is gone ({error.strerror}), and ft_launcher makes no other; "
            "the same command resumes the run"
        ) from error
    client.rank_monitor_socket.settimeout(ANSWER_TIMEOUT)
    client.send_heartbeat()
    opening = InitMsg.__new__(InitMsg)  # its constructor differs between the versions
    opening.rank_info, opening.iteration, opening.num_warmup_iters = client.rank_info, None, None
    write_object_to_ipc_socket(opening, client.rank_monitor_socket)
    reply = read_obj_from_ipc_socket(client.rank_monitor_socket)
    if not isinstance(reply, OkMsg):
        raise RankMonitorClientError(f"the rank monitor answered {reply!r} to a second opening")
    return client


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


def _end_monitor(self: Any) -> None:
    """Tell the monitor to end. NVRx waits until its queue is read, for ever where the monitor was killed."""
    self.should_stop.set()
    self.msg_queue.close()
    feeder = self.msg_queue._thread
    if feeder is not None:
        feeder.join(_FLUSH_PATIENCE)
    self.msg_queue.cancel_join_thread()


MonitorProcess.shutdown = _end_monitor


class WrapperStore(_TCPStore):
    """The store of the wrapper, which connects to it as soon as it has its monitor process.

    Args:
        monitored: called then, in this process alone; the monitor process makes a store of its own.
        arguments: NVRx's.
    """

    def __init__(self, *, monitored: tuple[int, Callable[[], None]], **arguments: Any) -> None:
        process, call = monitored
        if os.getpid() == process:
            call()
        super().__init__(**arguments)


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
