"""A step's metrics on their way from the device to the host, agreed on by all ranks."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

import torch
from torch import distributed as dist


class NonFiniteError(RuntimeError):
    """The loss or the gradient norm is NaN or infinite; seen by all ranks at once."""


class LifeOverError(RuntimeError):
    """This life was ended by a fault elsewhere; what this rank computes no longer counts."""


@dataclass(frozen=True)
class StepMetrics:
    """What all ranks agree on about a step, once it has reached the host."""

    step: int
    loss: float
    grad_norm: float
    stop_requested: bool


class Moment:
    """A moment of a device's work: when it has done what is queued by now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def past(self) -> bool:
        """Whether the device has come so far."""
        return self._event is None or self._event.query()

    def since(self, earlier: Moment) -> float | None:
        """Seconds of the device's time from `earlier` to this, both past; None on a CPU, which queues nothing."""
        if self._event is None or earlier._event is None:
            return None
        return earlier._event.elapsed_time(self._event) / 1000


class PendingMetrics:
    """A step's metrics on their way to the host.

    On a GPU they are read one step late, so that the host may queue the next step meanwhile: the reduction and
    the copy are queued with the step, and `wait` blocks only until the GPU has come past them.

    Args:
        step: the step.
        values: this rank's loss and its wish to stop (0 or 1), float32, shape (2,); summed over the ranks here.
        grad_norm: norm of the summed gradient, alike on all ranks; a scalar.
        world_size: number of ranks.

    Attributes:
        ready: when they are on the host.
    """

    def __init__(self, step: int, values: torch.Tensor, grad_norm: torch.Tensor, world_size: int) -> None:
        dist.all_reduce(values)
        packed = torch.cat([values, grad_norm.detach().float().reshape(1)])
        self._step, self._world = step, world_size
        self._host = packed
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
        self.ready = Moment(packed.device)

    def complete(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self.ready.past()

    def wait(self, over: threading.Event) -> StepMetrics:
        """The metrics.

        Args:
            over: set before the collectives of this life are aborted.

        Raises:
            NonFiniteError: the loss or the gradient norm is not finite.
            LifeOverError: the life ended before the metrics were seen complete. An aborted collective lets what is
                queued behind it run on garbage, so what completes from then on says nothing.
        """
        # Not `synchronize`: polling lets a restart's exception reach this thread while a collective is stuck.
        while not self.complete():
            time.sleep(0.0002)
        if over.is_set():  # looked at after the completion: what was complete before the abort counts
            raise LifeOverError(f"step {self._step}: this life was ended by a fault elsewhere")
        loss, stop, grad_norm = self._host.tolist()
        loss /= self._world
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NonFiniteError(f"step {self._step}: the loss is {loss} and the gradient norm {grad_norm}")
        return StepMetrics(self._step, loss, grad_norm, stop > 0)
