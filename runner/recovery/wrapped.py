"""What in-process restart plugs into NVRx's wrapper: a life, the abort of one, the budget, and the recipe's settings.

The order of things when a fault ends a life:
1. the rank that has it raises, or its monitor finds it silent; a record in the wrapper's store tells all ranks;
2. on each rank, in NVRx's monitor thread: `_Freeze` (nothing becomes valid any more), then `_Cut` (collectives and
   store waits raise). NVRx composes from the last to the first, so `_Freeze` is listed last;
3. the monitor thread raises `RankShouldRestart` (a BaseException) in the main thread, at whatever bytecode that is:
   also inside a `finally`, so nothing here relies on one having run;
4. health checks, a barrier of all ranks, and the function is entered again.
"""

# NVRx finds the parameter that takes the CallWrapper by its annotation, which must not be a string:
# no `from __future__ import annotations` in this file.

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from runner.control.channel import VERBOSE
from runner.recipe.recovery import InprocessSettings
from runner.recovery import nvrx
from runner.recovery.life import ProcessLife
from runner.recovery.meeting import Meeting
from runner.recovery.setup import WorkerSetup
from runner.recovery.start_watch import StartHangError

_PARTING_MARGIN = timedelta(seconds=1)  # more than a rank takes to be killed that hangs in its end


class WrappedLife(ProcessLife):
    """A life inside NVRx's wrapper."""

    call: nvrx.CallWrapper
    last_sign: float = 0.0  # monotonic time of the last heartbeat
    _voucher: nvrx.Voucher | None = None

    def first_step_begins(self) -> None:
        """The first step of this process begins."""
        super().first_step_begins()
        self._voucher = nvrx.Voucher(self.call, self.first_step)

    def first_step_over(self) -> None:
        """Silence counts from now on. Any thread; does not block."""
        super().first_step_over()
        voucher, self._voucher = self._voucher, None
        if voucher is not None:
            voucher.done()

    def heartbeat(self, step: int) -> None:
        """This rank has finished `step` and goes on."""
        super().heartbeat(step)
        self.last_sign = time.monotonic()
        self.call.ping()

    def silent(self) -> float:
        """Seconds since this rank's last sign of life, of those that count."""
        if self._voucher is not None and self._voucher.vouches:
            return 0.0
        return time.monotonic() - self.last_sign

    def hung_at_start(self, error: StartHangError) -> None:
        """Report it as NVRx's own monitor does: an exception set from here could end up in NVRx's watchdog, whose
        callback runs in the main thread and swallows it."""
        self.start_hang = error
        nvrx.report_hang(self.call)

    def atomic(self) -> AbstractContextManager[Any]:
        """A section that a restart waits for."""
        return self.call.atomic()


class Layer(Protocol):
    """What the wrapper asks of the layer that it serves.

    Attributes:
        life: the current one, where there is one.
    """

    life: WrappedLife | None

    def enter(self, call: nvrx.CallWrapper) -> None:
        """One life; returns when the run is done."""

    def freeze(self) -> None:
        """A fault ends the current life. Called in NVRx's monitor thread, ahead of the abort of collectives."""

    def finished(self) -> None:
        """All ranks have returned from their life: the run is done, or has stopped as was asked."""

    def out_of_budget(self, state: Any) -> None:
        """NVRx's retry controller refuses another life; `state` says why."""


class _Freeze(nvrx.Abort):
    """Ends the current life: hooks run, the fault is recorded."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        self.layer.freeze()
        return state


class _Cut(nvrx.Abort):
    """Makes blocked collectives and store waits raise, and destroys the process groups."""

    def __init__(self, layer: Layer, *, gpus: bool) -> None:
        self.layer, self.gpus = layer, gpus

    def __call__(self, state: Any) -> Any:
        life = self.layer.life
        if life is not None:
            life.cut(gloo=not self.gpus)
        if self.gpus:
            return nvrx.AbortTorchDistributed()(state)
        if dist.is_initialized():
            dist.destroy_process_group()
        return state


class _Done(nvrx.Completion):
    """All ranks have returned: whatever becomes of this one in NVRx's own end changes nothing."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        self.layer.finished()
        return state


class _Budget(nvrx.RetryController):
    """NVRx's retry controller, which also says which of its limits ended the run."""

    def __init__(self, layer: Layer, **limits: Any) -> None:
        super().__init__(**limits)
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        try:
            return super().__call__(state)
        except nvrx.RestartAbort:
            self.layer.out_of_budget(state)
            raise


def wrap(
    layer: Layer,
    setup: WorkerSetup,
    settings: InprocessSettings,
    meeting: Meeting,
    *,
    counter: nvrx.FaultCounter,
    min_world: int,
) -> Callable[[], None]:
    """The lives of a layer in NVRx's wrapper, with the recipe's settings.

    Args:
        layer: entered anew after each fault.
        setup: this worker.
        settings: `recovery.inprocess`.
        meeting: where the wrapper's store is served.
        counter: of this rank's faults.
        min_world: ranks that must be left.
    """
    s = settings
    wrapper = nvrx.make_wrapper(
        gpus=setup.gpus,
        checks=s.health_checks,
        local_rank=setup.facts.local_rank,
        counter=counter,
        store_factory=nvrx.WrapperStore,
        store_kwargs={
            "monitored": (os.getpid(), setup.presence.started),
            "parting": s.hard_timeout + s.termination_grace + _PARTING_MARGIN,
            "host_name": meeting.address,
            "port": meeting.port,
            "wait_for_workers": False,
            "timeout": setup.recipe.recovery.rendezvous_timeout,
        },
        initialize=_Budget(
            layer,
            max_iterations=s.max_restarts + 1,
            min_world_size=min_world,
            min_active_world_size=min_world,
        ),
        completion=_Done(layer),
        abort=nvrx.Compose(_Cut(layer, gpus=setup.gpus), _Freeze(layer)),
        rank_assignment=nvrx.Compose(nvrx.ActivateAllRanks(), nvrx.ShiftRanks()),
        monitor_thread_interval=s.monitor_interval,
        monitor_process_interval=s.monitor_interval,
        progress_watchdog_interval=s.monitor_interval,
        heartbeat_interval=s.heartbeat_interval,
        heartbeat_timeout=s.heartbeat_timeout,
        soft_timeout=s.soft_timeout,
        hard_timeout=s.hard_timeout,
        barrier_timeout=s.barrier_timeout,
        completion_timeout=s.completion_timeout,
        last_call_wait=s.last_call_wait,
        termination_grace_time=s.termination_grace,
        monitor_process_logfile=_monitor_log(setup),
    )

    def one_life(call: nvrx.CallWrapper = None) -> None:
        layer.enter(call)

    wrapped: Callable[[], None] = wrapper(one_life)
    return wrapped


def _monitor_log(setup: WorkerSetup) -> str | None:
    """Where NVRx's monitor process says what it sees: with --verbose only, a file for each worker process."""
    if os.environ.get(VERBOSE) != "1":
        return None
    return str(setup.run_folder / "logs" / f"monitor-{os.getpid()}-rank-{{rank}}.log")
