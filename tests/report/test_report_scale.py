"""The simulation of scale, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import training_run

from runner.report.cli import main as report
from runner.report.scale import load_costs, main, scale_table, simulate_all

DOCS = Path(__file__).parents[2] / "docs"
COSTS = sorted((DOCS / "benchmarks").glob("costs-*.json"))


def test_the_page_shows_what_its_costs_file_gives() -> None:
    page = (DOCS / "scaling.md").read_text()
    shown = [path for path in COSTS if path.name in page]
    assert len(shown) == 1
    costs = load_costs(shown[0])
    table = scale_table(simulate_all(costs, rates=(1.0,)))
    assert f"<!-- scale -->\nFrom: {costs.measured}\n\n{table}<!-- /scale -->" in page
    assert (DOCS / "scaling.svg").read_text().count("<svg") == 1


def test_goodput_falls_with_scale_and_fault_rate_and_the_advised_interval_is_no_worse() -> None:
    points = simulate_all(load_costs(COSTS[0]), scales=(256, 16384), rates=(1.0, 4.0), days=10)
    found = {(p.layer, p.devices, p.rate, p.advised): p.goodput for p in points}
    for layer in {p.layer for p in points}:
        assert found[layer, 16384, 1.0, True] < found[layer, 256, 1.0, True]
        assert found[layer, 16384, 4.0, True] < found[layer, 16384, 1.0, True]
        for devices in (256, 16384):
            assert found[layer, devices, 4.0, True] > found[layer, devices, 4.0, False] - 0.003
    assert found["ft_launcher+inprocess", 16384, 4.0, True] > found["kubernetes", 16384, 4.0, True]


def test_a_costs_file_is_made_from_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for layer in ("inprocess", "kubernetes"):
        runs.append(str(training_run(tmp_path / layer, layer=layer, steps=120, every=40, faults=2)))
    (tmp_path / "kubernetes" / "cell.json").write_text('{"name": "k", "baseline": "kubernetes"}')
    assert report([*runs, "--costs", str(tmp_path / "costs.json")]) == 0
    costs = load_costs(tmp_path / "costs.json")
    inprocess, kubernetes = costs.layers["inprocess"], costs.layers["kubernetes"]
    assert inprocess.memory and inprocess.soft_recovery < 5 and inprocess.save == pytest.approx(0.02)
    assert inprocess.hard_recovery == kubernetes.hard_recovery > 100
    capsys.readouterr()
    assert main([str(tmp_path / "costs.json")]) == 0
    assert "| 16,384 |" in capsys.readouterr().out


def test_of_two_runs_under_one_layer_none_vanishes_from_the_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(training_run(tmp_path / name, layer="inprocess", steps=120, every=40)) for name in "ab"]
    assert report([*runs, "--costs", str(tmp_path / "costs.json")]) == 2
    told = f"--costs: {runs[0]} and {runs[1]} both ran under inprocess; name one run a layer\n"
    assert capsys.readouterr().err == f"nvrx-report: {told}"
    assert not (tmp_path / "costs.json").exists()


def test_what_is_no_costs_file_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "costs.json"
    bad.write_text('{"step": 1, "layers": {"inprocess": {"sav": 1}}}')
    assert main([str(bad)]) == 2
    error = capsys.readouterr().err
    assert "layers.inprocess: unknown or missing" in error and "sav" in error
