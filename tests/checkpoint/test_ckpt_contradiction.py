"""Checkpoints that contradict their run: deleted by hand, or past the recipe's end. Nothing is trained over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ckpt_world import World, attempt, train

from runner.checkpoint.contradiction import OwnRun
from runner.errors import ExitCode
from runner.ledger.events import SaveCommitted, StepEnded
from runner.ledger.saves import newest_saved
from runner.ledger.writer import LedgerWriter


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    with World(2) as world:
        yield world


@pytest.fixture(scope="module")
def trained(two: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("trained") / "checkpoints"
    arguments = {"folder": str(folder), "run_id": "contradiction", "mode": "sync", "every": 4, "until": 6}
    two.run(train, **arguments)
    assert sorted(path.name for path in folder.iterdir()) == ["step-4", "step-6"]
    return folder


def record_saves(run: Path, *steps: int, segment_bytes: int = 1 << 20) -> None:
    ledger = LedgerWriter(run, rank=0, life="a", segment_bytes=segment_bytes)
    for step in steps:
        ledger.record(StepEnded(step, 0.1, 0.0, 8, 1.0, 0.1, None))
        ledger.record(SaveCommitted(step=step, bytes=1, seconds=0.1))
    ledger.close()


def again(two: World, folder: Path, run: OwnRun | None) -> list[dict[str, Any]]:
    until = run.steps if run is not None else 6
    arguments = {"folder": str(folder), "run_id": "contradiction", "mode": "sync", "every": 4}
    return two.run(attempt, run=run, until=until, **arguments)


def test_a_run_whose_checkpoints_are_gone_does_not_start_over(two: World, tmp_path: Path) -> None:
    run, folder = OwnRun(tmp_path / "run", steps=6), tmp_path / "checkpoints"
    record_saves(run.folder, 4, 8)
    for result in again(two, folder, run):
        assert result["code"] == ExitCode.NO_LOADABLE_CHECKPOINT
        assert result["error"].startswith(
            f"{folder} holds no checkpoint, and the ledger of this run says that"
        )
        assert (
            "last of step 8" in result["error"] and f"remove {run.folder / 'ledger'} too" in result["error"]
        )
    assert not list(folder.iterdir())
    shutil.rmtree(run.folder / "ledger")
    assert [result["source"] for result in again(two, folder, run)] == ["fresh", "fresh"]


def test_a_run_that_has_saved_nothing_yet_starts_at_the_beginning(two: World, tmp_path: Path) -> None:
    run = OwnRun(tmp_path / "run", steps=2)
    ledger = LedgerWriter(run.folder, rank=0, life="a")
    ledger.record(StepEnded(1, 0.1, 0.0, 8, 1.0, 0.1, None))
    ledger.close()
    assert [result["from"] for result in again(two, tmp_path / "checkpoints", run)] == [0, 0]


def test_an_end_that_the_run_is_past_needs_a_checkpoint_of_that_very_step(
    two: World, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for result in again(two, trained, OwnRun(run, steps=5)):
        assert result["code"] == ExitCode.BAD_RECIPE
        assert result["error"].startswith(
            f"training.steps: 5, but the run is past it: {trained} holds step 4, 6, and none of step 5; "
            "set training.steps to 6"
        )
    for rank, result in enumerate(again(two, trained, OwnRun(run, steps=4))):
        assert result["from"] == 6, "nothing is left to train, and step 4 is there"
        said = [event for level, event, _ in result["lines"] if level == "warning"]
        assert said == ["the run is past training.steps: nothing is left to train"] * (rank == 0)
    assert sorted(path.name for path in trained.iterdir()) == ["step-4", "step-6"]
    harmed = tmp_path / "harmed"
    shutil.copytree(trained, harmed)
    (harmed / "step-4" / "commit.json").unlink()
    for result in again(two, harmed, OwnRun(run, steps=4)):
        assert result["code"] == ExitCode.BAD_RECIPE
        assert "holds step 6, and a damaged one of step 4; set training.steps to 6" in result["error"]


def test_a_newer_checkpoint_that_was_deleted_is_missed(two: World, trained: Path, tmp_path: Path) -> None:
    run, folder = OwnRun(tmp_path / "run", steps=6), tmp_path / "checkpoints"
    record_saves(run.folder, 4, 6)
    shutil.copytree(trained, folder)
    (folder / "step-6").rename(folder / "step-6.damaged-1")
    missed = "a newer checkpoint that this run has saved is gone: the steps after this one are trained again"
    for gone in (False, True):
        if gone:
            shutil.rmtree(folder / "step-6")
            shutil.rmtree(folder / "step-6.damaged-1")
        results = again(two, folder, run)
        assert [result["from"] for result in results] == [4, 4]
        said = [fields for _, event, fields in results[0]["lines"] if event == missed]
        path = str(folder / "step-6")
        assert said == ([{"at": 4, "gone": 6, "path": path}] if gone else []), "once, unless it was set aside"


def test_settings_that_do_not_show_in_tensors_are_named_in_one_line_where_they_changed(
    two: World, tmp_path: Path
) -> None:
    heads, batch = "model.architecture.num_attention_heads", "training.global_batch_size"
    arguments = {"run_id": "decided", "mode": "sync", "every": 2, "folder": str(tmp_path)}
    event = "the recipe is not the one that this checkpoint was written with"

    def go_on(until: int, decided: dict[str, Any]) -> list[dict[str, Any]]:
        results = two.run(train, until=until, decided=decided, **arguments)
        assert [result["from"] for result in results] == [until - 2] * 2
        assert not [line for line in results[1]["lines"] if line[1] == event], "rank 0 speaks for all"
        return [fields for level, line, fields in results[0]["lines"] if line == event and level == "warning"]

    assert go_on(2, {}) == []
    assert go_on(4, {heads: 2, batch: 4, "dataset.paths": ["a"]}) == [], "an older record says nothing"
    assert go_on(6, {heads: 2, batch: 4, "of another release": 1}) == []
    (said,) = go_on(8, {heads: 4, batch: 8})
    assert said["step"] == 6 and "name another output.folder" in said["remedy"]
    assert said["changed"] == f"{heads}: 2 -> 4, {batch}: 4 -> 8"
    assert (
        "weights may compute something else" in said["effect"] and "met again or left out" in said["effect"]
    )


def test_the_ledger_knows_the_newest_save_through_torn_lines_and_folded_segments(tmp_path: Path) -> None:
    assert newest_saved(tmp_path) == 0
    record_saves(tmp_path, *range(4, 400, 4), segment_bytes=2000)
    ledger = tmp_path / "ledger"
    assert list(ledger.glob("*.history.jsonl"))
    with next(ledger.glob("rank-*.jsonl")).open("ab") as file:
        file.write(b'{"kind":"SaveCommitted","step":99999')
    assert newest_saved(tmp_path) == 396
    for path in ledger.glob("rank-*.[0-9]*.jsonl"):
        path.unlink()
    assert newest_saved(tmp_path) > 300, "the history has what was folded"
