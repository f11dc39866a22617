"""Live sinks, read back with the tools that people read them with."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_runs import training_run
from ledgerlab import Lab

from runner.errors import InputError
from runner.ledger.codec import Stamp, encode
from runner.ledger.events import (
    Event,
    FaultFired,
    FaultSeen,
    LaunchStarted,
    LifeStarted,
    Loaded,
    SaveCommitted,
    StepEnded,
)
from runner.ledger.follow import Follower
from runner.ledger.goodput import account
from runner.ledger.history import NS
from runner.ledger.reader import read_run
from runner.ledger.sinks import live
from runner.ledger.sinks.live import Feed, live_reporting, open_sinks
from runner.ledger.sinks.prometheus import PrometheusSink
from runner.ledger.sinks.stats import LiveStats
from runner.ledger.writer import LedgerWriter
from runner.recipe.output import LiveSettings, MlflowSettings, WandbSettings

WAIT = 15.0
METRIC = re.compile(r"\bnvrx_[a-z_]+")


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not found():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def step(number: int, *, loss: float = 1.0) -> StepEnded:
    return StepEnded(number, 0.25, 0.05, 1000, loss, 1e-3, 0.5)


def write_two_lives(writer: LedgerWriter) -> None:
    """Steps 1 to 6; a fault; training goes on after step 4; steps 5 to 8."""
    writer.begin_life("a-0/0")
    writer.record(LifeStarted(2, 0, time.time(), False))
    writer.record(Loaded(0, "fresh", 0.0))
    for number in range(1, 7):
        writer.record(step(number, loss=10.0 - number))
    writer.record(FaultFired(0, 7, "exception"))
    writer.record(FaultSeen("inprocess", "boom"))
    writer.begin_life("a-1/0")
    writer.record(LifeStarted(2, 1, time.time(), True))
    writer.record(Loaded(4, "memory", 0.0))
    for number in range(5, 9):
        writer.record(step(number, loss=9.5 - number))


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k != "run"))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_follower_hands_out_each_line_once_and_waits_for_unfinished_ones(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    assert follower.poll() == []
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    writer.record(step(1))
    assert [event for event, _ in follower.poll()] == [step(1)]
    line = encode(step(2), Stamp(1.0, 1.0, "n", 0, "1", 1))
    with writer.path.open("ab") as file:
        file.write(line[:30])
        file.flush()
        assert follower.poll() == []
        file.write(line[30:])
    assert [event for event, _ in follower.poll()] == [step(2)]
    assert follower.poll() == [] and follower.unreadable == 0


def test_a_follower_misses_nothing_and_doubles_nothing_while_files_are_folded(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1", segment_bytes=8 << 10)
    early, late = Follower(tmp_path), Follower(tmp_path)
    seen: list[Event] = []
    for number in range(1, 401):
        writer.record(step(number))
        if number % 10 == 0:
            seen += [event for event, _ in early.poll()]
    assert seen == [step(number) for number in range(1, 401)]
    covered = sum(getattr(e, "last", 0) - getattr(e, "first", 0) + 1 for e, _ in late.poll())
    assert covered == 400


def test_prometheus_shows_the_run_so_far_to_prometheus_own_parser(tmp_path: Path) -> None:
    sink = PrometheusSink(0, 'a "run"')
    try:
        feed = Feed(tmp_path, [("Prometheus", sink)])
        launcher = LedgerWriter(tmp_path, rank=-1, life="launch")
        launcher.record(LaunchStarted(["x"], "inprocess", {}))
        write_two_lives(LedgerWriter(tmp_path, rank=0, life="a-0/0"))
        other = LedgerWriter(tmp_path, rank=1, life="a-0/1")
        other.record(step(1))  # another rank of the node says the same again
        feed.round()
        found = scrape(sink.port)
        assert found["nvrx_step", ()] == 8
        assert found["nvrx_useful_steps", ()] == 8
        assert found["nvrx_replayed_steps_total", ()] == 2
        assert found["nvrx_loss", ()] == 1.5
        assert found["nvrx_stall_seconds_total", ()] == pytest.approx(0.5)
        assert found["nvrx_tokens_per_second", ()] == pytest.approx(
            5000
        )  # four steps of the last life, no spike
        assert found["nvrx_restarts_total", (("by", "inprocess"),)] == 1
        assert found["nvrx_faults_injected_total", (("type", "exception"),)] == 1
        assert found["nvrx_recoveries_total", ()] == 1
        assert 0 < found["nvrx_training_goodput", ()] <= 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/", timeout=10)
    finally:
        sink.close()


def test_dashboard_and_page_name_the_metrics_that_there_are(tmp_path: Path) -> None:
    sink = PrometheusSink(0, "run")
    try:
        feed = Feed(tmp_path, [("Prometheus", sink)])
        write_two_lives(LedgerWriter(tmp_path, rank=0, life="a-0/0"))
        LedgerWriter(tmp_path, rank=0, life="a-1/0").record(SaveCommitted(4, 1, 1.0))
        feed.round()
        served = {name for name, _ in scrape(sink.port)}
    finally:
        sink.close()
    docs = Path(__file__).parents[2] / "docs"
    dashboard = json.loads((docs / "grafana-dashboard.json").read_text())
    used = {
        name for panel in dashboard["panels"] for t in panel["targets"] for name in METRIC.findall(t["expr"])
    }
    assert used <= served and len(used) > 10
    assert set(METRIC.findall((docs / "live.md").read_text())) == served


def test_who_connects_to_prometheus_port_and_asks_for_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.ledger.sinks.prometheus._PATIENCE", 0.1)
    sink = PrometheusSink(0, "run")
    try:
        with socket.create_connection(("127.0.0.1", sink.port), timeout=20) as silent:
            assert silent.recv(1) == b""
    finally:
        sink.close()


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    sink = PrometheusSink(0, "run")
    try:
        with pytest.raises(InputError, match=f"prometheus_port: {sink.port} cannot be served"):
            open_sinks(LiveSettings(prometheus_port=sink.port), tmp_path, "run")
    finally:
        sink.close()


@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher", "kubernetes"])
def test_the_live_figures_agree_with_the_report(tmp_path: Path, layer: str) -> None:
    records = read_run(training_run(tmp_path, layer=layer, steps=200, every=50, faults=3)).records
    goodput, _, _ = account(records)
    stats = LiveStats()
    for record in sorted(records, key=lambda r: r.stamp.t):
        stats.consume(record.event, record.stamp)
    assert stats.useful_steps == goodput.useful_steps == 200
    assert stats.replayed_steps == goodput.replayed_steps
    assert sum(stats.restarts.values()) == sum(goodput.restarts.values()) == 3
    assert stats.restarts == goodput.restarts
    live_goodput = stats.goodput(now=stats.last_event)
    assert live_goodput == pytest.approx(goodput.training, abs=0.02)
    assert stats.recovery_seconds / stats.recoveries == pytest.approx(
        sum(r.total for r in goodput.recoveries) / 3 / NS, abs=0.05
    )


def test_tokens_per_second_are_those_since_the_restart(tmp_path: Path) -> None:
    """Nothing of the life before, nor the time of its end, is in the figure."""
    with contextlib.closing(LedgerWriter(tmp_path, rank=0, life="")) as writer:
        write_two_lives(writer)
        writer.begin_life("a-2/0")
        writer.record(LifeStarted(2, 2, time.time(), True))
        writer.record(Loaded(8, "memory", 0.0))
        writer.record(StepEnded(9, 0.5, 0.1, 1000, 1.0, 1e-3, 0.5))
    stats = LiveStats()
    for record in read_run(tmp_path).records:
        stats.consume(record.event, record.stamp)
    assert stats.tokens_per_second == pytest.approx(1000 / (0.5 - 0.1))


def tensorboard_scalars(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_shows_one_curve_without_the_steps_that_were_lost(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = LedgerWriter(tmp_path, rank=0, life="a-0/0")
    with live_reporting(LiveSettings(tensorboard=True), tmp_path, "run"):
        write_two_lives(writer)
    losses = tensorboard_scalars(tmp_path / "tensorboard").Scalars("train/loss")
    assert [point.step for point in losses] == list(range(1, 9))
    assert [point.value for point in losses] == pytest.approx([9, 8, 7, 6, 4.5, 3.5, 2.5, 1.5])


def test_a_later_command_goes_on_with_the_curve_and_repeats_nothing(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = LedgerWriter(tmp_path, rank=0, life="a-0/0")
    with live_reporting(LiveSettings(tensorboard=True), tmp_path, "run"):
        write_two_lives(writer)
    time.sleep(0.01)
    with live_reporting(LiveSettings(tensorboard=True), tmp_path, "run"):
        writer.begin_life("b-0/0")
        writer.record(LifeStarted(2, 0, time.time(), False))
        writer.record(Loaded(8, "storage", 0.0))
        writer.record(step(9, loss=0.5))
    losses = tensorboard_scalars(tmp_path / "tensorboard").Scalars("train/loss")
    assert [point.step for point in losses] == list(range(1, 10))


def test_wandb_gets_the_run_through_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = LiveSettings(wandb=WandbSettings(project="p", mode="offline"))
    writer = LedgerWriter(tmp_path, rank=0, life="a-0/0")
    with live_reporting(settings, tmp_path, "run"):
        write_two_lives(writer)
    (offline,) = [path for path in (tmp_path / "wandb").iterdir() if path.name.startswith("offline-run-")]
    (stored,) = offline.glob("*.wandb")
    until(lambda: b"train/loss" in stored.read_bytes())  # its own process writes the file after `finish`


def test_mlflow_gets_the_run_through_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    settings = LiveSettings(mlflow=MlflowSettings(experiment="e", tracking_uri=uri))
    writer = LedgerWriter(tmp_path, rank=0, life="a-0/0")
    with live_reporting(settings, tmp_path, "run"):
        write_two_lives(writer)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("e")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.metrics["train/loss"] == 1.5
    assert max(point.step for point in client.get_metric_history(run.info.run_id, "train/loss")) == 8


def test_a_sink_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
            raise ConnectionError("no route to host")

        def flush(self) -> None: ...

        def close(self) -> None: ...

    sink = PrometheusSink(0, "run")
    try:
        feed = Feed(tmp_path, [("Broken", Broken()), ("Prometheus", sink)])
        writer = LedgerWriter(tmp_path, rank=0, life="a-0/0")
        with caplog.at_level(logging.ERROR):
            for number in (1, 2, 3):
                writer.record(LifeStarted(1, 0, time.time(), False))
                writer.record(step(number))
                feed.round()
        assert (
            len(caplog.records) == 1 and "Broken failed" in caplog.text and "no route to host" in caplog.text
        )
        assert scrape(sink.port)["nvrx_step", ()] == 3
    finally:
        sink.close()


def test_a_missing_package_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "find_spec", lambda name: None)
    for settings, key in (
        (LiveSettings(tensorboard=True), "tensorboard"),
        (LiveSettings(wandb=WandbSettings(project="p")), "wandb"),
        (LiveSettings(mlflow=MlflowSettings(experiment="e")), "mlflow"),
    ):
        with pytest.raises(InputError, match=rf"output\.live\.{key}.*pip install {key}$"):
            open_sinks(settings, tmp_path, "run")


def test_a_node_tells_of_its_own_ranks_only(tmp_path: Path) -> None:
    sink = PrometheusSink(0, "run")
    try:
        feed = Feed(tmp_path, [("Prometheus", sink)])
        lab = Lab()
        lab.launch()
        lab.begin("1", 0, startup=1, load=0)
        lab.step(1)
        lab.write(tmp_path)  # nodes called node-a: not this machine
        feed.round()
        assert scrape(sink.port)["nvrx_useful_steps", ()] == 0
    finally:
        sink.close()
