"""MLflow, through its own client. One MLflow run for all commands of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.ledger.codec import Stamp
from runner.ledger.events import Event
from runner.ledger.sinks.sink import Rank0Scalars

_RUN_FILE = "mlflow-run-id"
_LARGEST_BATCH = 900
"""MLflow takes at most 1000 metrics a request."""


class MlflowSink:
    """Logs the scalars of rank 0, a batch a round.

    Args:
        experiment: name of the MLflow experiment; made where it is missing.
        tracking_uri: of the server or store; None: what MLFLOW_TRACKING_URI says.
        name: name of the MLflow run, whose id is kept in the run's folder.
    """

    def __init__(self, run_folder: Path, *, experiment: str, tracking_uri: str | None, name: str) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._name = experiment, name
        self._file = run_folder / _RUN_FILE
        self._run_id = ""
        self._pending: list[Any] = []
        self._pick = Rank0Scalars()

    def _open(self) -> None:
        if self._file.is_file():
            self._run_id = self._file.read_text(encoding="utf-8").strip()
            self._client.set_terminated(self._run_id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        identity = (
            found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        )
        self._run_id = self._client.create_run(identity, run_name=self._name).info.run_id
        self._file.write_text(self._run_id, encoding="utf-8")

    def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
        """Keep what is new for the next round."""
        found = self._pick.scalars(event, stamp)
        if fresh and found is not None:
            step, scalars = found
            at = round(stamp.t * 1000)
            self._pending += [self._metric(name, value, at, step) for name, value in scalars.items()]

    def flush(self) -> None:
        """Send what was kept."""
        if self._pending and not self._run_id:
            self._open()
        while self._pending:
            self._client.log_batch(self._run_id, metrics=self._pending[:_LARGEST_BATCH])
            del self._pending[:_LARGEST_BATCH]

    def close(self) -> None:
        """End this command's part of the MLflow run."""
        if self._run_id:
            self._client.set_terminated(self._run_id)
