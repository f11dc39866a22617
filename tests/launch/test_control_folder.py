"""The folder through which a run's processes on one node speak, and where their temporary files go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.launch.supervisor import control_folder


def test_what_cannot_be_removed_of_it_is_told_and_changes_nothing_in_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def busy(*_: object, **__: object) -> None:
        raise OSError(16, "Device or resource busy")

    with control_folder() as folder:
        (folder / "tmp").mkdir()
        (folder / "tmp" / "in-use").touch()
        monkeypatch.setattr(os, "rmdir", busy)
    monkeypatch.undo()
    assert capsys.readouterr().err == (
        f"nvrx-run: {folder} cannot be removed and is left behind: something of it is in use\n"
    )


def test_nothing_of_it_is_left_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with control_folder() as folder:
        (folder / "tmp").mkdir()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""
