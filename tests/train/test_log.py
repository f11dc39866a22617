"""Log lines that cannot be written are lost, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.train.log import _LogFile


def test_a_full_disk_takes_log_lines_and_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    file = _LogFile(Path("/dev/full"))
    for number in range(3):
        file.write({"event": "step", "step": number})
    assert capsys.readouterr().err == "log lines are lost: /dev/full: No space left on device\n"


def test_a_log_that_cannot_be_opened_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("")
    file = _LogFile(tmp_path / "logs" / "rank-0.jsonl")
    file.write({"event": "lost"})
    (tmp_path / "logs").unlink()
    file.write({"event": "kept"})
    assert json.loads((tmp_path / "logs" / "rank-0.jsonl").read_text()) == {"event": "kept"}
    assert capsys.readouterr().err.startswith("log lines are lost: ")
