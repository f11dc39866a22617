"""Interval advice: from a run's own costs, from a recipe, and as `--explain` prints it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from example_runs import training_run

from runner import cli
from runner.ledger.interval import FaultRates, advise
from runner.report.advice import advice_rows, measured_costs
from runner.report.recipe_advice import RecipeCosts, interval_advice
from runner.report.view import view_run

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = RecipeCosts(
    ranks=1024,
    on_gpus=True,
    step=2.0,
    write=100.0,
    mode="async",
    layer="inprocess",
    every=1000,
    snapshot_every=50,
)


def test_costs_are_those_that_the_run_had(tmp_path: Path) -> None:
    costs = measured_costs(
        view_run(training_run(tmp_path, steps=200, every=50, faults=2, stall=0.25, write=1.5))
    )
    assert costs is not None
    assert costs.step == pytest.approx(0.115, abs=0.01)
    assert (costs.save, costs.write) == (pytest.approx(0.25), pytest.approx(1.5))
    assert costs.snapshot == pytest.approx(0.001) and 1 < costs.soft_recovery < 3


def test_a_run_without_a_save_gives_no_advice(tmp_path: Path) -> None:
    view = view_run(training_run(tmp_path, steps=20, every=1000, faults=0))
    assert measured_costs(view) is None and advice_rows(view) == ([], "")


def test_more_gpus_are_told_to_save_more_often(tmp_path: Path) -> None:
    rows, note = advice_rows(view_run(training_run(tmp_path, steps=200, every=50, faults=2)))
    steps = [int(row[2].split()[0].replace(",", "")) for row in rows]
    assert steps == sorted(steps, reverse=True) and steps[0] > 10 * steps[-1]
    assert "50,677 GPU hours" in note


def test_a_recipe_whose_run_has_saved_is_advised_from_its_own_costs(tmp_path: Path) -> None:
    run = training_run(tmp_path, steps=200, every=50, faults=2)
    text = "\n".join(interval_advice(RECIPE, run))
    costs = measured_costs(view_run(run))
    assert costs is not None
    advice = advise(costs, FaultRates.of_fleet(1024))
    assert f"every: {advice.every:,} steps, snapshot_every: {advice.snapshot_every:,}" in text.replace(
        " (as often as a write allows)", ""
    )
    assert f"measured in {run}" in text


def test_a_recipe_alone_is_advised_from_guesses_that_say_so(tmp_path: Path) -> None:
    text = "\n".join(interval_advice(RECIPE, tmp_path / "no-run"))
    assert "guessed from the recipe" in text and "this recipe: every: 1,000, snapshot_every: 50" in text
    text = "\n".join(interval_advice(replace(RECIPE, write=None), tmp_path / "no-run"))
    assert text.startswith("not known") and "storage_bandwidth" in text


def test_a_run_that_has_only_begun_changes_no_advice(tmp_path: Path) -> None:
    before = interval_advice(RECIPE, tmp_path)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "rank-00000.000.jsonl").touch()
    assert interval_advice(RECIPE, tmp_path) == before


def test_explain_ends_with_the_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--explain", str(RECIPES / "llama8b-async-combined.yaml")]) == 0
    section = capsys.readouterr().out.partition("HOW OFTEN TO SAVE\n")[2]
    assert "snapshot_every:" in section and "expected goodput" in section and "Daly 2006" in section
    assert "16 GPUs, one in 50,677 GPU hours" in section


@pytest.mark.parametrize(
    ("on_gpus", "says"),
    [
        (True, "h: 2 GPUs, one in"),
        (False, "h: 2 ranks on CPUs, each taken for a GPU, one in"),
        (None, "h: 2 ranks, one in"),
    ],
)
def test_only_ranks_that_have_gpus_are_called_gpus(on_gpus: bool | None, says: str, tmp_path: Path) -> None:
    text = "\n".join(interval_advice(replace(RECIPE, ranks=2, on_gpus=on_gpus), tmp_path / "no-run"))
    assert says in text
