"""What killed commands left goes with the next start that can know they are gone, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.checkpoint.shm import arena_path, remove_leftovers
from runner.launch.stale import PREFIX, remove_stale, sign


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Path]:
    """Shared memory of a run in the folder `other`."""
    path = arena_path(f"stale-{tmp_path.name}-{os.getpid()}", 0)
    path.write_bytes(b"a snapshot")
    os.utime(path, (path.stat().st_mtime - 5,) * 2)
    yield path
    remove_leftovers(run_id(path))


def run_id(arena: Path) -> str:
    return arena.name.removeprefix("nvrx-").removesuffix("-arena-0")


def control_folder(
    temporary: Path, name: str, run: Path, *pids: int, node: int = 0, run_id: str = "stale"
) -> Path:
    folder = temporary / f"{PREFIX}{name}"
    (folder / "tmp").mkdir(parents=True)
    sign(folder, run, run_id, node, pids)
    return folder


def change(folder: Path, **changes: object) -> None:
    """Rewrite some of a note, as if another machine or namespace had written it."""
    note = json.loads((folder / "owner.json").read_text())
    (folder / "owner.json").write_text(json.dumps(note | changes))


def test_the_folder_of_a_command_goes_once_none_of_its_processes_is_left(
    temporary: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(["sleep", "60"]) as process:
        folders = [
            control_folder(temporary, "both", run, process.pid),
            control_folder(temporary, "one", run, process.pid, os.getpid()),
        ]
        remove_stale(run, 0)
        assert all(folder.exists() for folder in folders)
        process.kill()
    remove_stale(run, 0)
    assert [folder.exists() for folder in folders] == [False, True]


def test_another_run_that_was_killed_and_never_came_back_does_not_keep_its_memory(
    temporary: Path, tmp_path: Path, arena: Path
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        folder = control_folder(temporary, "other", tmp_path / "other", process.pid, run_id=run_id(arena))
        remove_stale(tmp_path / "run", 0)
        assert folder.exists() and arena.exists()
        process.kill()
    remove_stale(tmp_path / "run", 0)
    assert not any(temporary.iterdir()) and not arena.exists()


@pytest.mark.parametrize("differs", ["boot", "pids"])
def test_another_run_whose_processes_cannot_be_seen_from_here_is_left_alone(
    temporary: Path, tmp_path: Path, arena: Path, differs: str
) -> None:
    """Pods with a folder for temporary files in common, or nodes."""
    folder = control_folder(temporary, "other", tmp_path / "other", run_id=run_id(arena))
    change(folder, **{differs: "another"})
    remove_stale(tmp_path / "run", 0)
    assert folder.exists() and arena.exists()


def test_memory_of_a_run_stays_where_another_command_of_it_is_at_work_or_has_begun_since(
    temporary: Path, tmp_path: Path, arena: Path
) -> None:
    gone = control_folder(temporary, "gone", tmp_path / "other", run_id=run_id(arena))
    at_work = control_folder(temporary, "work", tmp_path / "other", os.getpid(), node=1, run_id=run_id(arena))
    remove_stale(tmp_path / "run", 0)
    assert not gone.exists() and at_work.exists() and arena.exists()
    change(at_work, processes={})
    os.utime(arena)
    os.utime(arena, (arena.stat().st_mtime + 60,) * 2)
    remove_stale(tmp_path / "run", 0)
    assert not at_work.exists() and arena.exists()


def test_a_process_of_the_same_number_is_another_after_the_machine_or_the_counter_began_anew(
    temporary: Path, tmp_path: Path
) -> None:
    changes: dict[str, object] = {"boot": "another", "processes": {str(os.getpid()): "1"}}
    for name, value in changes.items():
        folder = control_folder(temporary, name, tmp_path, os.getpid())
        change(folder, **{name: value})
        remove_stale(tmp_path, 0)
        assert not folder.exists()


def test_the_folder_of_another_node_of_the_run_stays_where_they_share_the_one_for_temporary_files(
    temporary: Path, tmp_path: Path
) -> None:
    """From here its machine looks like one that was started anew, and its processes cannot be seen."""
    folder = control_folder(temporary, "other-node", tmp_path, os.getpid(), node=1)
    change(folder, boot="another")
    remove_stale(tmp_path, 0)
    assert folder.exists()
    remove_stale(tmp_path, 1)
    assert not folder.exists()


def test_what_does_not_say_whose_it_is_stays(temporary: Path, tmp_path: Path) -> None:
    (temporary / f"{PREFIX}empty").mkdir()
    (temporary / f"{PREFIX}file").touch()
    elsewhere = control_folder(tmp_path, "elsewhere", tmp_path)
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    for number, note in enumerate((b"{", b"[]", b'{"run": 1}', b"\xff", b'{"run": "%s"}' % bytes(tmp_path))):
        (temporary / f"{PREFIX}{number}").mkdir()
        (temporary / f"{PREFIX}{number}" / "owner.json").write_bytes(note)
    before = sorted(temporary.iterdir())
    remove_stale(tmp_path, 0)
    assert sorted(temporary.iterdir()) == before and elsewhere.exists()
