"""What the training loop needs from checkpoint, recovery, faults and ledger, as protocols.

The loop is written against these; `runner.train.work` is the one place that plugs the implementations in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import Store

from runner.ledger.events import Event, LoadSource


@dataclass
class TrainState:
    """Everything that decides how a run goes on, as one rank holds it.

    Attributes:
        tensors: name -> parameter, buffer or optimiser moment; a DTensor where sharded, a plain tensor where
            every rank holds the same value. Names are the model's fully qualified names with a prefix
            (`model.`, `optim.exp_avg.`, `optim.exp_avg_sq.`); names, order and global shapes are the same on
            all ranks. The objects stay the same for the whole life: a restore copies into them.
        forward_mutable: names that may change outside `optimizer.step()` (buffers).
        step: optimiser steps done.
        data: state of a streaming dataset on this rank (JSON values); empty for map-style data.
        decided: settings that decide how a run goes on and do not show in the tensors: dotted name -> JSON value. Kept
            in every checkpoint, so that a life with others can say so.
        on_restored: called after tensors, `step` and `data` were replaced, to refresh what derives from them.
    """

    tensors: Mapping[str, torch.Tensor]
    forward_mutable: frozenset[str]
    step: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    on_restored: Callable[[], None] = lambda: None
    decided: dict[str, Any] = field(default_factory=dict)


class Ledger(Protocol):
    """Append-only record of a run."""

    def record(self, event: Event, *, ago: float = 0.0) -> None:
        """Append one event; never raises for a full or lost disk, but says so on the log once.

        Args:
            ago: seconds since it happened.
        """

    def sync(self) -> None:
        """Make everything recorded so far durable (fsync)."""


class LifeLedger(Ledger, Protocol):
    """A ledger that is told when another life begins in the same process."""

    def begin_life(self, life: str, *, rank: int | None = None) -> None:
        """Events from now on belong to `life`, and to `rank` where that has changed."""


class Life(Protocol):
    """One execution of the training function on one rank, as the recovery layer hands it over.

    Attributes:
        rank, world_size, local_rank, local_world_size: this rank's place in this life.
        attempt: text, the same on all ranks of this life and different in every other life of the run.
        in_process: True where this process already ran an earlier life (its memory is still there).
        store: control plane, keys private to this attempt; not the process group's store. Every wait on it
            is bounded.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: str
    in_process: bool
    store: Store

    def join(self, device: torch.device) -> None:
        """Initialise the default process group (NCCL for cuda, gloo for cpu) in a way this layer can abort."""

    def starting(self, part: str, longest: timedelta) -> None:
        """A part of start-up begins (one word) and takes at most `longest`; it ends with the next one, or `resumed`."""

    def resumed(self, step: int) -> None:
        """The state after `step` is in place. Not a heartbeat: the first step may still take long (compilation)."""

    def heartbeat(self, step: int) -> None:
        """Tell every layer that this rank makes progress. Call at least once a step, and in long start-up phases."""

    def done(self) -> None:
        """The last step is committed on all ranks: what this one still does changes nothing in the run's result."""

    def failing(self) -> None:
        """An exception is on its way out of this life: this rank does not hang, whatever it does meanwhile."""

    def atomic(self) -> AbstractContextManager[None]:
        """A section that an in-process restart does not interrupt. Keep it short."""

    def on_abort(self, hook: Callable[[], None]) -> None:
        """Run `hook` when a fault ends this life, ahead of the abort of collectives (any thread; must not block)."""

    def on_last_fault(self, hook: Callable[[], None]) -> None:
        """Run `hook` where a fault of this rank's own ends the run, and there is time for a last word.

        In the main thread, ahead of what `on_abort` runs; it may block for some seconds. A layer that mends a fault, or
        that ends a life in place, does not call it.
        """


class Checkpointer(Protocol):
    """Snapshots, durable saves and restore. One object serves all lives of a process.

    Order of calls in a life: `attach`, `restore`, then for each step `before_forward`, `before_update`,
    `after_update`; at the end `finish`. `close` once for the process.
    """

    def attach(self, life: Life, state: TrainState) -> None:
        """Bind to this life's ranks and tensors. Saves of earlier lives that are not committed are abandoned.

        Registers `freeze` with `Life.on_abort`.
        """

    def restore(self) -> tuple[int, LoadSource]:
        """Agree with all ranks on the newest state that all can have, copy it into `state`, return its step.

        Raises:
            RunError: NO_LOADABLE_CHECKPOINT where checkpoints exist and none loads.
        """

    def before_forward(self) -> float:
        """Wait until `forward_mutable` tensors are copied; returns the seconds waited."""

    def before_update(self) -> float:
        """Wait until the running snapshot's copy is complete, so that parameters may change; returns seconds waited.

        Also notices finished and failed saves.

        Raises:
            RunError: SAVE_FAILED where a save failed and the policy is to stop, on every rank.
        """

    def after_update(self, *, force_save: bool = False) -> float:
        """Snapshot and save `state` (whose `step` has just been counted up) where due; returns seconds waited.

        On a GPU a snapshot counts, and its asynchronous save starts, from the next `before_update` (or `finish`)
        on; on a CPU, and for a save in mode `sync`, at once, so that the step's loss must have been checked before.
        """

    def reject(self) -> None:
        """The last update was bad (its loss was not finite): its snapshot never counts. Before the next update."""

    def finish(self) -> None:
        """Save the last step if it is not saved, wait (bounded) for all commits, raise if one failed."""

    def freeze(self) -> None:
        """Nothing that is not valid now becomes valid, nothing is committed any more in this life. Does not block."""

    def close(self) -> None:
        """Stop writers and give host memory back. `keep_snapshots` for a successor is decided by the exit path."""


class FaultInjector(Protocol):
    """Fires scheduled faults."""

    def during_step(self, step: int, rank: int) -> None:
        """Called in the middle of step `step` (1 is the first): fires what is due on this rank."""

    def loss(self, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        """The loss, made NaN where such a fault is due."""
