"""Fires scheduled faults: records each durably first, so that it fires once in the life of a run."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.faults.fired import FiredFaults
from runner.ledger.events import Event, FaultFired, Loaded, PhaseEnded, SaveStarted, SnapshotTaken
from runner.recipe.fault_schedule import PlannedFault, fault_schedule
from runner.recipe.faults import FaultPhase, FaultType
from runner.recipe.recipe import Recipe
from runner.system.process import DATA_WORKER, children_by_parent, process_name

if TYPE_CHECKING:
    import torch

    from runner.train.ports import Ledger, LifeLedger


class InjectedFault(RuntimeError):
    """The exception that a fault of type `exception` raises."""


class ScheduledFaults:
    """Implements `FaultInjector` for a recipe's schedule.

    Args:
        planned: the schedule.
        folder: the run's folder; what has fired is recorded in it, where every node sees it.
        ledger: gets a `FaultFired` before each fault.
        hang_duration: how long a hang lasts; None for ever.
    """

    def __init__(
        self,
        planned: Iterable[PlannedFault],
        folder: Path,
        ledger: Ledger,
        hang_duration: timedelta | None = None,
    ) -> None:
        self._due: dict[tuple[FaultPhase, int, int], list[PlannedFault]] = {}
        for fault in planned:
            step = 0 if fault.phase in ("start", "restore") else fault.step
            self._due.setdefault((fault.phase, step, fault.rank), []).append(fault)
        self._fired = FiredFaults(folder)
        self._ledger = ledger
        self._hang = hang_duration

    @classmethod
    def of_recipe(cls, recipe: Recipe, world_size: int, ledger: Ledger) -> ScheduledFaults:
        """The faults that a recipe asks for in a run of `world_size` ranks."""
        faults = recipe.faults
        planned = fault_schedule(faults, steps=recipe.training.steps, world_size=world_size)
        return cls(planned, recipe.run_folder, ledger, faults.hang_duration)

    def during_step(self, step: int, rank: int) -> None:
        """Fire what is due on this rank in the middle of `step`."""
        for fault in self._take("step", step, rank, nan=False):
            self._fire(fault)

    def loss(self, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        """The loss; NaN (with its gradient) where such a fault is due."""
        for _ in self._take("step", step, rank, nan=True):
            loss = loss * float("nan")
        return loss

    def on_event(self, event: Event, rank: int) -> None:
        """Fire what is due now that this rank has recorded `event`."""
        if isinstance(event, PhaseEnded) and event.phase == "rendezvous":
            place: tuple[FaultPhase, int] = ("start", 0)
        elif isinstance(event, Loaded) and event.source != "fresh":
            place = ("restore", 0)
        elif isinstance(event, SnapshotTaken):
            place = ("snapshot", event.step)
        elif isinstance(event, SaveStarted):
            place = ("save", event.step)
        else:
            return
        for fault in self._take(*place, rank, nan=False):
            self._fire(fault)

    def _take(self, phase: FaultPhase, step: int, rank: int, *, nan: bool) -> list[PlannedFault]:
        """What is due and has not fired; recorded as fired by the time this returns."""
        due = self._due.get((phase, step, rank), [])
        now = [fault for fault in due if (fault.type == "nan_loss") == nan and not self._fired.has(fault)]
        for fault in now:
            self._fired.add(fault)
            self._ledger.record(FaultFired(fault=fault.index, step=fault.step, type=fault.type))
            self._ledger.sync()
        return now

    def _fire(self, fault: PlannedFault) -> None:
        kind: FaultType = fault.type
        if kind == "exception":
            raise InjectedFault(f"injected fault {fault.index}: exception in step {fault.step}")
        if kind == "hang":
            _hang(self._hang)
        elif kind == "native_hang":
            _native_hang(self._hang)
        elif kind == "stuck_collective":
            _stuck_collective()
        elif kind in ("sigkill", "oom_kill"):  # the kernel's out-of-memory killer sends the same signal
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "sigstop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "exit_0":
            sys.exit(0)
        elif kind == "exit_1":
            sys.exit(1)
        elif kind == "cuda_error":
            _cuda_error()
        elif kind == "loader_death":
            os.kill(_data_workers(fault)[0], signal.SIGKILL)
        elif kind == "loader_hang":
            for worker in _data_workers(fault):
                os.kill(worker, signal.SIGSTOP)


def _hang(duration: timedelta | None) -> None:
    """Python that does nothing useful: another thread can still raise an exception in it."""
    end = None if duration is None else time.monotonic() + duration.total_seconds()
    while end is None or time.monotonic() < end:
        time.sleep(0.05)


def _native_hang(duration: timedelta | None) -> None:
    """One call that does not come back: no exception reaches this thread until it does."""
    libc = ctypes.CDLL(None)
    if duration is None:
        while True:
            libc.pause()
    libc.usleep(int(duration.total_seconds() * 1e6))


def _stuck_collective() -> None:
    """Wait for what no other rank sends, over the process group that the layer aborts."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else "cpu"
    nothing = torch.zeros(1, device=device)
    dist.recv(nothing, src=(dist.get_rank() + 1) % dist.get_world_size())
    nothing.cpu()  # on a GPU the call itself returns at once


def _cuda_error() -> None:
    """What a rank gets to see of a CUDA error. Where it computes on a GPU, that is a real one, and the GPU's context is
    unusable from then on; without a GPU only the exception is real."""
    import torch

    if torch.cuda.is_initialized():
        torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))
        torch.cuda.synchronize()
    raise torch.AcceleratorError("CUDA error: device-side assert triggered (imitated: there is no GPU)")


def _data_workers(fault: PlannedFault) -> list[int]:
    """Data workers of this rank, oldest first.

    Raises:
        RuntimeError: there are none.
    """
    workers = [pid for pid in children_by_parent().get(os.getpid(), ()) if process_name(pid) == DATA_WORKER]
    if not workers:
        raise RuntimeError(f"injected fault {fault.index}: {fault.type}, and this rank has no data workers")
    return sorted(workers)


class FaultingLedger:
    """A ledger that lets the injector strike at what it records: faults outside the middle of a step.

    Args:
        ledger: where events go, before anything fires.
    """

    def __init__(self, ledger: LifeLedger) -> None:
        self._ledger = ledger
        self._rank = -1
        self.faults: ScheduledFaults | None = None

    def begin_life(self, life: str, *, rank: int | None = None) -> None:
        """Events from now on belong to `life`, and to `rank` where that has changed."""
        self._ledger.begin_life(life, rank=rank)
        if rank is not None:
            self._rank = rank

    def record(self, event: Event, *, ago: float = 0.0) -> None:
        """Append one event, then fire what is due at it."""
        self._ledger.record(event, ago=ago)
        if self.faults is not None:
            self.faults.on_event(event, self._rank)

    def sync(self) -> None:
        """Make everything recorded so far durable."""
        self._ledger.sync()
