"""What workers wrote decides, whatever the clocks of their nodes say."""

from __future__ import annotations

from pathlib import Path

from tinylab import recipe_text

from runner.errors import ExitCode
from runner.faults.records import FaultRecord, read_records, write_record
from runner.launch.control import Control
from runner.launch.earlier import decisive, earlier_launches, note_earlier_launches
from runner.launch.outcome import Outcome, OutcomeReader, write_outcome
from runner.launch.verdict import Watch, conclude
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
