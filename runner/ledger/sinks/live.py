"""Feeds the sinks of a node from the run's ledger, on a thread of the supervisor."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import InputError
from runner.ledger.follow import Follower
from runner.ledger.sinks.sink import Sink
from runner.ledger.writer import node_id

if TYPE_CHECKING:
    from runner.recipe.output import LiveSettings

_log = logging.getLogger("runner.live")
ROUND = 1.0
"""Seconds between two looks at the ledger."""
LAST_ROUND = 30.0
"""Longest that the end of a run waits for a sink."""


def open_sinks(settings: LiveSettings, run_folder: Path, name: str) -> list[tuple[str, Sink]]:
    """The sinks that a recipe asks for.

    Raises:
        InputError: a package is not installed, or the port is taken.
    """
    sinks: list[tuple[str, Sink]] = []
    if settings.tensorboard:
        _need("tensorboard", "output.live.tensorboard")
        from runner.ledger.sinks.tensorboard import TensorBoardSink

        sinks.append(("TensorBoard", TensorBoardSink(run_folder)))
    if settings.wandb is not None:
        _need("wandb", "output.live.wandb")
        from runner.ledger.sinks.wandb import WandbSink

        w = settings.wandb
        identity = f"{name}-{_identity(run_folder)}"
        sink = WandbSink(
            run_folder, project=w.project, entity=w.entity, mode=w.mode, name=name, identity=identity
        )
        sinks.append(("W&B", sink))
    if settings.mlflow is not None:
        _need("mlflow", "output.live.mlflow")
        from runner.ledger.sinks.mlflow import MlflowSink

        m = settings.mlflow
        sinks.append(
            (
                "MLflow",
                MlflowSink(run_folder, experiment=m.experiment, tracking_uri=m.tracking_uri, name=name),
            )
        )
    if settings.prometheus_port is not None:
        from runner.ledger.sinks.prometheus import PrometheusSink

        sinks.append(("Prometheus", PrometheusSink(settings.prometheus_port, name)))
    return sinks


def _need(package: str, key: str) -> None:
    if find_spec(package) is None:
        raise InputError(f"{key}: the package {package} is not installed: pip install {package}")


def _identity(run_folder: Path) -> str:
    """A text that this run folder keeps for good and no other has."""
    import secrets

    path = run_folder / "live-id"
    if not path.is_file():  # the nodes come here together: the first to finish names it for all
        draft = run_folder / f".live-id-{secrets.token_hex(8)}"
        draft.write_text(secrets.token_hex(4), encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text(encoding="utf-8").strip()


@contextmanager
def live_reporting(settings: LiveSettings, run_folder: Path, name: str) -> Iterator[None]:
    """In this context the node's events reach the sinks within about a second.

    A sink that fails is told on the log and left alone from then on; training and the other sinks go on.

    Raises:
        InputError: as `open_sinks`.
    """
    sinks = open_sinks(settings, run_folder, name)
    if not sinks:
        yield
        return
    feed = Feed(run_folder, sinks)
    thread = threading.Thread(target=feed.run, name="live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        feed.stop()
        thread.join(LAST_ROUND)
        if thread.is_alive():
            _log.error("live reporting did not end within %.0f s and is left behind", LAST_ROUND)


class Feed:
    """Reads the ledger and feeds the sinks."""

    def __init__(self, run_folder: Path, sinks: Sequence[tuple[str, Sink]]) -> None:
        self._follower = Follower(run_folder)
        self._sinks = list(sinks)
        self._node = node_id()
        self._since = time.time()
        self._stop = threading.Event()

    def run(self) -> None:
        """Until `stop`, and one last round."""
        while not self._stop.wait(ROUND):
            self.round()
        self.round()
        for name, sink in list(self._sinks):
            self._guarded(name, sink, sink.close)

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    def round(self) -> None:
        """Hand out what is new."""
        events = [item for item in self._follower.poll() if item[1].node == self._node]
        for name, sink in list(self._sinks):

            def feed(sink: Sink = sink) -> None:
                for event, stamp in events:
                    sink.consume(event, stamp, stamp.t >= self._since)
                sink.flush()

            self._guarded(name, sink, feed)

    def _guarded(self, name: str, sink: Sink, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - other people's clients fail in every way; said, and never training's
            _log.error("%s failed and gets no more of this run: %s: %s", name, type(error).__name__, error)
            self._sinks = [item for item in self._sinks if item[1] is not sink]
