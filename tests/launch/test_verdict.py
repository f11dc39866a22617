"""What a supervisor says of a launch whose workers left no word."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.control.outcome import Outcome
from runner.control.signs import WorkerSign
from runner.errors import ExitCode
from runner.faults.records import FaultRecord, write_record
from runner.launch.watch.death import Death
from runner.launch.watch.verdict import MEETING_OVER, Watch, conclude, ended_launcher, signal_to_launcher
from runner.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("watch", "says"),
    [
        (
            Watch(launcher_status=-9, workers_came=True),
            "the launcher was killed (SIGKILL); the same command resumes the run",
        ),
        (
            Watch(
                launcher_status=1, outside=ended_launcher("SIGTERM"), workers_came=True,
                deaths=[Death(WorkerSign(7, 1, 1, 0, "a", step=9), 0.0, 0, 1, False, "SIGTERM")],
            ),
            "the launcher was ended by SIGTERM, and its workers with it; the same command resumes the run",
        ),
        (Watch(launcher_status=1, workers_came=True), "a worker failed; the same command resumes the run"),
        (Watch(launcher_status=1), "the launcher failed before any worker started: no such option"),
        (
            Watch(launcher_status=-9),
            "the launcher was killed (SIGKILL) before any worker started: no such option",
        ),
    ],
)  # fmt: skip
def test_the_cause_is_named(tmp_path: Path, watch: Watch, says: str) -> None:
    path, log = tmp_path / "recipe.yaml", tmp_path / "launcher.log"
    path.write_text(recipe_text(tmp_path, "none"))
    log.write_text("no such option\n=========\n")
    verdict = conclude([], watch, load_recipe(path).recipe, log)
    assert (verdict.exit_code, verdict.message) == (ExitCode.CRASHED, says)


def test_a_signal_to_the_launcher_is_told_from_one_to_another_process(tmp_path: Path) -> None:
    log = tmp_path / "launcher.log"
    log.write_text("SignalException: Process 70 got signal: 2\nSignalException: Process 7 got signal: 15\n")
    assert [signal_to_launcher(log, pid) for pid in (7, 70, 8)] == ["SIGTERM", "SIGINT", ""]


def test_spent_restarts_name_the_fault_that_spent_the_last(tmp_path: Path) -> None:
    path, log = tmp_path / "recipe.yaml", tmp_path / "launcher.log"
    path.write_text(recipe_text(tmp_path, "ft_launcher+inprocess"))
    recipe = load_recipe(path).recipe
    spent = Outcome(1, "3 in-process restarts are spent", rank=0, step=4, attempt="b-3", spent_by="b-3")
    found: list[str] = []
    for record in (  # one more of each, and the message changes
        FaultRecord("exception", 1, 2, "inprocess", "b-2", "ValueError: of an earlier life"),
        FaultRecord("interrupted", 0, 4, "inprocess", "b-3", "a fault on another rank", consequence=True),
        FaultRecord("hang", 1, 4, "inprocess", "b-3", "no progress for 8.0s"),
        FaultRecord("died", 1, 4, "inprocess", "b-3", "rank 1 died (SIGKILL)"),
    ):
        write_record(recipe.run_folder, record)
        verdict = conclude(
            [spent], Watch(launcher_status=1, workers_came=True, budget_spent=True), recipe, log
        )
        assert verdict.exit_code == ExitCode.RESTART_BUDGET_SPENT
        found.append(verdict.message.partition("; last fault: 3 in-process restarts are spent")[2])
    assert found == [
        "",
        "; last fault: rank 0 after step 4: a fault on another rank",
        "; last fault: rank 1 after step 4: no progress for 8.0s",
        "; last fault: rank 1 died (SIGKILL) after step 4",
    ]


def test_an_error_is_not_hidden_by_what_another_process_prints_after_it(tmp_path: Path) -> None:
    path, log = tmp_path / "recipe.yaml", tmp_path / "launcher.log"
    path.write_text(recipe_text(tmp_path, "none"))
    log.write_text(
        "Traceback (most recent call last):\n  File x\n"
        "torch.elastic.RendezvousClosedError: closed\n/x.py:1: a warning\n"
    )
    verdict = conclude([], Watch(launcher_status=1), load_recipe(path).recipe, log)
    assert verdict.message.endswith("torch.elastic.RendezvousClosedError: closed")
    assert MEETING_OVER.search(verdict.message)
