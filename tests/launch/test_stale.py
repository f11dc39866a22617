"""Control folders of commands that were killed go with the run's next start, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from runner.launch.stale import PREFIX, remove_stale_folders, sign


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def control_folder(temporary: Path, name: str, run: Path, *pids: int, node: int = 0) -> Path:
    folder = temporary / f"{PREFIX}{name}"
    (folder / "tmp").mkdir(parents=True)
    sign(folder, run, node, pids)
    return folder


def test_the_folder_of_a_command_goes_once_none_of_its_processes_is_left(
    temporary: Path, tmp_path: Path
) -> None:
    ours, other = tmp_path / "run", tmp_path / "run-2"
    with subprocess.Popen(["sleep", "60"]) as process:
        folders = [
            control_folder(temporary, "both", ours, process.pid),
            control_folder(temporary, "one", ours, process.pid, os.getpid()),
            control_folder(temporary, "other", other, process.pid),
        ]
        remove_stale_folders(ours, 0)
        assert all(folder.exists() for folder in folders)
        process.kill()
    remove_stale_folders(ours, 0)
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_a_process_of_the_same_number_is_another_after_the_machine_or_the_counter_began_anew(
    temporary: Path, tmp_path: Path
) -> None:
    for name, value in {"boot": "another", "processes": {str(os.getpid()): "1"}}.items():
        folder = control_folder(temporary, name, tmp_path, os.getpid())
        note = json.loads((folder / "owner.json").read_text())
        (folder / "owner.json").write_text(json.dumps(note | {name: value}))
        remove_stale_folders(tmp_path, 0)
        assert not folder.exists()


def test_the_folder_of_another_node_of_the_run_stays_where_they_share_the_one_for_temporary_files(
    temporary: Path, tmp_path: Path
) -> None:
    """From here its machine looks like one that was started anew, and its processes cannot be seen."""
    folder = control_folder(temporary, "other-node", tmp_path, os.getpid(), node=1)
    note = json.loads((folder / "owner.json").read_text())
    (folder / "owner.json").write_text(json.dumps(note | {"boot": "another"}))
    remove_stale_folders(tmp_path, 0)
    assert folder.exists()
    remove_stale_folders(tmp_path, 1)
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
    remove_stale_folders(tmp_path, 0)
    assert sorted(temporary.iterdir()) == before and elsewhere.exists()
