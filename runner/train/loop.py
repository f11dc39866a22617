"""The training loop of one life: steps until the recipe's last one, or until the fault that ends it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from runner.errors import ExitCode, RunError
from runner.ledger.events import StepEnded
from runner.recipe.recipe import Recipe
from runner.train.data.batches import BatchSource, to_device
from runner.train.kernels import KernelTimes
from runner.train.loss import next_token_loss
from runner.train.metrics import LifeOverError, Moment, NonFiniteError, PendingMetrics, StepMetrics
from runner.train.optimizer import learning_rate
from runner.train.pace import Pace
from runner.train.ports import Checkpointer, FaultInjector, Ledger, Life
from runner.train.progress import StepReporter
from runner.train.setup import Workload, seed_micro_batch
from runner.train.sharding import set_gradient_sync
from runner.train.step_clock import StepClock, StepTime
from runner.train.waiting import PeerWaits


@dataclass
class LoopParts:
    """What the loop works with; the worker plugs it together."""

    recipe: Recipe
    ledger: Ledger
    log: structlog.stdlib.BoundLogger
    checkpointer: Checkpointer
    faults: FaultInjector
    stop_requested: Callable[[], bool]
    waits: PeerWaits | None = None
    kernels: KernelTimes | None = None


class TrainingLoop:
    """Runs steps until the recipe's last one.

    Args:
        parts: the parts that outlive a life.
        life: this life.
        workload: its model, optimiser and state.
        batches: its data.
        device: where it computes.
    """

    def __init__(
        self, parts: LoopParts, life: Life, workload: Workload, batches: BatchSource, device: torch.device
    ) -> None:
        self._parts, self._life, self._workload = parts, life, workload
        self._batches, self._device = batches, device
        self._training = parts.recipe.training
        self._micro_batches = (
            self._training.global_batch_size // life.world_size // self._training.micro_batch_size
        )
        self._tokens = self._training.global_batch_size * parts.recipe.dataset.sequence_length
        # FSDP casts by its own policy; DDP has none.
        self._autocast = self._training.precision == "bf16" and parts.recipe.sharding.strategy == "ddp"
        self._run_ahead = device.type == "cuda"
        checkpoint = parts.recipe.checkpoint
        self._sync_every = checkpoint.every if checkpoint.mode == "sync" else None
        self._pending: deque[PendingMetrics] = deque()  # one at most; whoever pops it reports it
        self._over = threading.Event()
        life.on_abort(self.freeze)
        life.on_abort(batches.abandon)
        stragglers = parts.recipe.recovery.stragglers
        self._pace = (
            Pace(stragglers, parts.waits, parts.kernels, life, parts.ledger, parts.log)
            if stragglers and parts.waits
            else None
        )
        self._stop_agreed = False
        self._clock = StepClock(Moment(device))

    def run(self) -> None:
        """Train from `state.step` to the end, and commit the last step.

        Raises:
            RunError: PREEMPTED where the run was asked to stop (after saving); SAVE_FAILED.
            NonFiniteError: the loss or gradient is not finite.
        """
        state = self._workload.state
        self._batches.start(state.step, state.data)
        self._clock = StepClock(Moment(self._device))
        with StepReporter(
            self._parts.recipe, self._parts.ledger, self._parts.log, self._life.rank
        ) as reporter:
            first = state.step + 1
            for step in range(first, self._training.steps + 1):
                if self._pace is not None:
                    self._pace.step_begins(step)
                self._step(step, reporter)
                if step == first:  # a recovery ends with it, and nobody shall wait for the next one, too
                    self._settle(reporter)
                self._life.heartbeat(step)
            self._settle(reporter)
            if self._pace is not None:
                self._pace.step_begins(self._training.steps + 1)
        self._parts.checkpointer.finish()

    def freeze(self) -> None:
        """This life is over: what the device still computes counts no more. Called ahead of the abort, by any thread.

        The last step's metrics are read a step late. Where they are there, they count: the next life may go on from
        the state after that step, and nobody else would ever report it.
        """
        try:
            self._last_word()
        except (
            RuntimeError
        ):  # not finite, or the GPU's context is lost: no news for a life that has a fault already
            pass
        finally:
            self._over.set()

    def _last_word(self) -> None:
        last = next(iter(self._pending), None)
        if last is not None and last.complete():
            metrics = last.wait(self._over)
            if self._take():
                took = self._clock.ended_unseen(last.ready)
                self._parts.ledger.record(self._ended(metrics, took), ago=took.ago)

    def _step(self, step: int, reporter: StepReporter) -> None:
        if self._stop_agreed:  # ahead of the forward, which may change buffers: what is saved is a whole step
            self._settle(reporter)  # on a GPU the last step's loss is not known yet
            self._save_and_stop()
        loss = self._forward_backward(step)
        grad_norm = self._workload.optimizer.clip()
        self._settle(reporter)
        stop = torch.full_like(loss, float(self._parts.stop_requested()))
        pending = PendingMetrics(step, torch.stack([loss, stop]), grad_norm, self._life.world_size)
        if not self._run_ahead or (self._sync_every is not None and step % self._sync_every == 0):
            pending.wait(
                self._over
            )  # a bad loss never reaches the parameters, nor a checkpoint that is written at once
        self._update(step)
        self._pending.append(pending)
        if not self._run_ahead:
            self._settle(reporter)

    def _forward_backward(self, step: int) -> torch.Tensor:
        """Accumulate the gradient of this rank's micro batches; returns their mean loss, a detached scalar."""
        self._clock.stalled(self._parts.checkpointer.before_forward())
        first = self._life.rank * self._micro_batches
        total = torch.zeros((), device=self._device)
        for index, batch in enumerate(self._batches.micro_batches()):
            inputs, targets = to_device(batch, self._device)
            seed_micro_batch(self._training.seed, step, first + index)
            set_gradient_sync(self._workload.model, index == self._micro_batches - 1)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                loss = next_token_loss(self._workload.model, inputs, targets) / self._micro_batches
            loss = self._parts.faults.loss(step, self._life.rank, loss)
            loss.backward()
            total += loss.detach()
        self._parts.faults.during_step(step, self._life.rank)
        return total

    def _update(self, step: int) -> None:
        workload, checkpointer = self._workload, self._parts.checkpointer
        self._clock.stalled(checkpointer.before_update())
        workload.optimizer.update(learning_rate(step, self._training))
        workload.state.step = step
        workload.state.data = self._batches.state()
        self._clock.stalled(checkpointer.after_update())

    def _settle(self, reporter: StepReporter) -> None:
        """Wait for the metrics of the step that is under way, check and report them."""
        pending = next(iter(self._pending), None)
        if pending is None:
            return
        try:
            metrics = pending.wait(self._over)
        except NonFiniteError:
            self._parts.checkpointer.reject()  # on a GPU the update has been made; nobody shall restart from it
            raise
        if not self._take():  # `freeze` was faster
            raise LifeOverError(f"step {metrics.step}: this life was ended by a fault elsewhere")
        reporter.step(self._ended(metrics, self._clock.ended(pending.ready)))
        self._stop_agreed |= metrics.stop_requested

    def _take(self) -> bool:
        """Whether the step under way is this thread's to report."""
        try:
            self._pending.popleft()
        except IndexError:
            return False
        return True

    def _ended(self, metrics: StepMetrics, took: StepTime) -> StepEnded:
        """The record of the step that these metrics are of."""
        return StepEnded(
            step=metrics.step,
            seconds=took.seconds,
            stalled=took.stalled,
            tokens=self._tokens,
            loss=metrics.loss,
            lr=learning_rate(metrics.step, self._training),
            grad_norm=metrics.grad_norm,
        )

    def _save_and_stop(self) -> None:
        """All ranks come here at the same step: the wish to stop was summed over them with the loss."""
        self._parts.checkpointer.after_update(force_save=True)
        self._parts.checkpointer.finish()
        raise RunError(
            f"stopped on request after step {self._workload.state.step}, which is saved; "
            "the same command goes on from there",
            ExitCode.PREEMPTED,
        )
