"""Deleting old checkpoints: what cannot be deleted is told and fails nothing, and the end of a run waits, bounded."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ckpt_disk import mount
from ckpt_world import Rank, Recorder, World, section, train
from test_ckpt_folder import commit, steps

from runner.checkpoint import folder as folder_module
from runner.checkpoint import manager as manager_module
from runner.checkpoint import retention as retention_module
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.retention import Retention


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a folder one that can be renamed but not removed."""

    def held(folder: Path) -> None:
        (folder / "held").mkdir()
        if os.geteuid() == 0:
            mount(folder / "held", "size=64k")
        else:
            (folder / "held" / "file").touch()
            (folder / "held").chmod(0o500)

    yield held
    for folder in tmp_path.rglob("held"):
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        else:
            folder.chmod(0o700)


def test_one_that_cannot_be_deleted_is_told_and_the_others_go(
    tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    for step in (1, 2, 3, 4):
        commit(tmp_path, step)
    hold(tmp_path / "step-2")
    log = Recorder()
    retention = Retention(CheckpointFolder(tmp_path), section(keep_last=1), log)
    for _ in range(2):  # told once
        retention.request()
        assert retention.wait(10, lambda: None)
    assert steps(tmp_path) == [4] and (tmp_path / "step-2.deleting").exists()
    (told,) = log.said("old checkpoint cannot be deleted")
    assert told["path"] == str(tmp_path / "step-2") and "held" in told["reason"]
    retention.sweep()
    (told,) = log.said("unfinished checkpoint ignored, and cannot be removed")
    assert told["path"] == str(tmp_path / "step-2.deleting") and "held" in told["reason"]


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = Recorder()
    retention = Retention(CheckpointFolder(tmp_path / "file"), section(), log)
    retention.request()
    assert retention.wait(10, lambda: None)
    (told,) = log.said("old checkpoint cannot be deleted")
    assert told["path"] == str(tmp_path / "file") and "Not a directory" in told["reason"]


def test_one_round_at_a_time_and_none_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, running, most = threading.Event(), [], []
    remove = folder_module.remove_tree

    def slow(path: Path) -> None:
        running.append(path)
        most.append(len(running))
        gate.wait(10)
        remove(path)
        running.remove(path)

    monkeypatch.setattr(folder_module, "remove_tree", slow)
    retention = Retention(CheckpointFolder(tmp_path), section(keep_last=1), Recorder())
    for step in (1, 2, 3):
        commit(tmp_path, step)
        retention.request()
    assert not retention.wait(0.1, lambda: None)
    commit(tmp_path, 4)
    retention.request()
    gate.set()
    assert retention.wait(10, lambda: None)
    assert steps(tmp_path) == [4] and max(most) == 1


def test_the_thread_leaves_when_idle_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "_IDLE", 0.05)
    retention = Retention(CheckpointFolder(tmp_path), section(keep_last=1), Recorder())
    for step in (1, 2, 3):
        commit(tmp_path, step)
        retention.request()
        assert retention.wait(10, lambda: None)
        assert steps(tmp_path) == [step]
        thread = retention._thread
        if thread is not None:
            thread.join(10)
            assert not thread.is_alive()


def test_a_run_whose_old_checkpoint_cannot_be_deleted_goes_on(
    two: World, tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    arguments: dict[str, Any] = {
        "folder": str(tmp_path / "c"), "run_id": "held", "mode": "sync", "every": 1, "keep_last": 1,
    }  # fmt: skip
    two.run(train, until=1, **arguments)
    hold(tmp_path / "c" / "step-1")
    first, second = two.run(train, until=4, **arguments)
    assert first["committed"] == [2, 3, 4]
    told = {
        event: fields for level, event, fields in first["lines"] if level == "warning" and "path" in fields
    }
    assert told["old checkpoint cannot be deleted"]["path"] == str(tmp_path / "c" / "step-1")
    assert not [event for _, event, _ in second["lines"] if "deleted" in event]  # rank 0 deletes
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-1.deleting", "step-4"]


def train_with_slow_deletions(place: Rank, seconds: float, patience: float, **arguments: Any) -> Any:
    """What is left when `finish` has returned on rank 0."""
    remove = folder_module.remove_tree

    def slow(path: Path) -> None:
        time.sleep(seconds)
        remove(path)

    folder_module.remove_tree = slow
    before, manager_module._DELETE_PATIENCE = manager_module._DELETE_PATIENCE, patience
    try:
        result = train(place, **arguments)
        left = sorted(path.name for path in Path(arguments["folder"]).iterdir())
    finally:
        folder_module.remove_tree = remove
        manager_module._DELETE_PATIENCE = before
    return {"left": left, "said": [event for _, event, _ in result["lines"]]}


def test_the_end_of_a_run_waits_for_deletions_but_not_for_ever(two: World, tmp_path: Path) -> None:
    common: dict[str, Any] = {"run_id": "slowly", "mode": "sync", "every": 1, "keep_last": 1, "until": 2}
    waits, _ = two.run(
        train_with_slow_deletions, folder=str(tmp_path / "a"), seconds=1.0, patience=30.0, **common
    )
    assert waits["left"] == ["step-2"]
    leaves, _ = two.run(
        train_with_slow_deletions, folder=str(tmp_path / "b"), seconds=3.0, patience=0.2, **common
    )
    assert leaves["left"] == ["step-1.deleting", "step-2"]
    assert "old checkpoints are still being deleted" in leaves["said"]
