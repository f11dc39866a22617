"""What a consumer of the event stream is."""

from __future__ import annotations

from typing import Protocol

from runner.ledger.codec import Stamp
from runner.ledger.events import Event


class Sink(Protocol):
    """Consumes the events of one node, in order, on one thread."""

    def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
        """Take one event. `fresh`: written since this command began; older ones come first, once."""

    def flush(self) -> None:
        """Called after each round of events."""

    def close(self) -> None:
        """The run is over on this node."""


class Rank0Scalars:
    """Picks what curves are made of out of the event stream: finished steps and restarts, as rank 0 saw them."""

    def __init__(self) -> None:
        self.lives = 0

    def scalars(self, event: Event, stamp: Stamp) -> tuple[int, dict[str, float]] | None:
        """(step, name -> value) where the event is a step's end on rank 0."""
        from runner.ledger.events import LifeStarted, SaveCommitted, StepEnded

        if stamp.rank != 0:
            return None
        if isinstance(event, LifeStarted):
            self.lives += 1
        elif isinstance(event, SaveCommitted):
            return event.step, {
                "checkpoint/write_seconds": event.seconds,
                "checkpoint/bytes": float(event.bytes),
            }
        elif isinstance(event, StepEnded):
            busy = event.seconds - event.stalled
            values = {
                "train/loss": event.loss,
                "train/lr": event.lr,
                "train/step_seconds": event.seconds,
                "train/stall_seconds": event.stalled,
                "train/restarts": float(max(0, self.lives - 1)),
            }
            if event.grad_norm is not None:
                values["train/grad_norm"] = event.grad_norm
            if busy > 0:
                values["train/tokens_per_second"] = event.tokens / busy
            return event.step, values
        return None
