"""Weights & Biases, through its own client. One W&B run for all commands of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.ledger.codec import Stamp
from runner.ledger.events import Event
from runner.ledger.sinks.sink import Rank0Scalars


class WandbSink:
    """Logs the scalars of rank 0.

    W&B's own step counter may only grow, and training goes back to the last snapshot after a fault: so the step is a
    metric of its own, and the axis of all others.

    Args:
        project, entity, mode: as W&B names them.
        name: name of the W&B run.
        identity: one W&B run for each; the same text in a later command goes on with the same run.
    """

    def __init__(
        self, run_folder: Path, *, project: str, entity: str | None, mode: str, name: str, identity: str
    ) -> None:
        import wandb

        self._settings: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "mode": mode,
            "name": name,
            "id": identity,
            "resume": "allow",
            "dir": str(run_folder),
            # the supervisor's output is the user's terminal: the client must not wrap it
            "settings": wandb.Settings(console="off", silent=True),
        }
        self._wandb = wandb
        self._run: Any = None
        self._pick = Rank0Scalars()

    def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
        """Log what is new."""
        found = self._pick.scalars(event, stamp)
        if not fresh or found is None:
            return
        if self._run is None:
            self._run = self._wandb.init(**self._settings)
            self._run.define_metric("train/step")
            self._run.define_metric("*", step_metric="train/step")
        step, scalars = found
        self._run.log({"train/step": step, **scalars})

    def flush(self) -> None:
        """The client sends by itself."""

    def close(self) -> None:
        """End this command's part of the W&B run."""
        if self._run is not None:
            self._run.finish()
