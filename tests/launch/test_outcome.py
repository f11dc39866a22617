"""What workers wrote decides, whatever the clocks of their nodes say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.control.channel import Control
from runner.control.earlier import decisive, earlier_launches, note_earlier_launches
from runner.control.outcome import NO_LIFE, Outcome, OutcomeReader, decide, write_outcome
from runner.control.signs import WorkerSign
from runner.errors import ExitCode, RunError
from runner.faults.records import FaultRecord, read_records, write_record
from runner.launch.watch.deaths import Deaths
from runner.launch.watch.verdict import Watch, conclude, signal_to_launcher
from runner.recipe.load import load_recipe

AHEAD, BEHIND = 4e9, 1.0  # wall clocks of nodes that are far out


def outcome(code: ExitCode, attempt: str, clock: float) -> Outcome:
    return Outcome(int(code), "because", rank=0, step=3, attempt=attempt, time=clock)


def test_an_earlier_launch_is_told_by_its_files_not_by_its_clock(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    (tmp_path / "control").mkdir()
    write_outcome(tmp_path, outcome(ExitCode.NO_PROGRESS, "old", AHEAD))
    write_record(tmp_path, FaultRecord("exception", 0, 3, "none", "old", "ValueError", time=AHEAD))
    reader = OutcomeReader(tmp_path)
    note_earlier_launches(tmp_path, control)
    earlier = earlier_launches(tmp_path, control)
    assert reader.outcomes() == []
    assert decisive(tmp_path, control, earlier) is None
    assert read_records(tmp_path, without=earlier) == []
    new = outcome(ExitCode.SAVE_FAILED, "new", BEHIND)
    write_outcome(tmp_path, new)
    write_record(tmp_path, FaultRecord("exception", 0, 3, "none", "new", "ValueError", time=BEHIND))
    assert reader.outcomes() == [new]
    assert decisive(tmp_path, control, earlier) == new
    assert [record.attempt for record in read_records(tmp_path, without=earlier)] == ["new"]


def test_a_node_whose_launcher_ends_well_is_done_only_when_rank_0_says_so(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_text(tmp_path, "none"))
    recipe = load_recipe(path).recipe
    log = tmp_path / "launcher.log"
    watch = Watch(launcher_status=0, workers_came=True)
    for nodes in (1, 2):
        cluster = recipe.cluster.model_copy(update={"nodes": nodes})
        several = recipe.model_copy(update={"cluster": cluster})
        assert conclude([], watch, several, log).exit_code == ExitCode.CRASHED
        done = outcome(ExitCode.DONE, "a", BEHIND)
        assert conclude([done], watch, several, log).exit_code == ExitCode.DONE


def test_of_several_starts_the_last_has_the_word_and_in_it_the_first_cause() -> None:
    told = [
        Outcome(1, "mended", 1, 2, "1-a", 0, time=1),
        Outcome(1, "cause", 0, 4, "2-b", 1, time=2),
        Outcome(1, "led to", 1, 4, "2-b", 1, time=3),
        Outcome(1, "follows", 1, 4, "2-b", 1, consequence=True, time=4),
    ]
    assert [getattr(decide(told[:n]), "message", None) for n in range(5)] == [
        None, "mended", "cause", "cause", "cause",
    ]  # fmt: skip
    told.append(Outcome(1, "no life", 1, 0, f"{NO_LIFE}7", 2, time=5))
    assert decide(told) is told[-1]
    told.append(Outcome(int(ExitCode.PREEMPTED), "stopped", 0, 5, "3-c", 2, time=6))
    assert decide(told) is told[-1]


def test_a_folder_that_is_removed_while_the_run_goes_on_is_said_to_be(tmp_path: Path) -> None:
    reader = OutcomeReader(tmp_path)
    assert reader.outcomes() == []
    (tmp_path / "outcome").rmdir()
    with pytest.raises(RunError, match="outcome: removed while the run went on; the same command") as caught:
        reader.outcomes()
    assert caught.value.exit_code == ExitCode.CRASHED


def test_a_log_that_is_removed_while_the_run_goes_on_takes_nothing_from_what_workers_say(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "recipe.yaml", tmp_path / "gone.log"
    path.write_text(recipe_text(tmp_path, "none"))
    recipe = load_recipe(path).recipe
    stopped = Outcome(int(ExitCode.PREEMPTED), "stopped after step 3", 0, 3, "1-a")
    watch = Watch(launcher_status=1, workers_came=True)
    assert conclude([stopped], watch, recipe, log).exit_code == ExitCode.PREEMPTED
    assert "its log was removed" in conclude([], Watch(launcher_status=1), recipe, log).message
    assert signal_to_launcher(log, 7) == ""
    deaths = Deaths(log, tmp_path, "none")
    assert deaths.add(WorkerSign(7, 1, 1, 0, "1-a", step=3), []) is not None
    deaths.settle(finally_=True)
    assert [str(death) for death in deaths.all] == ["rank 1 died"]
