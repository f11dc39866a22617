"""Log lines that cannot be written are lost, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_recipe import TINY, changed

from runner.ledger.events import StepEnded
from runner.recipe.recipe import Recipe
from runner.train.log import _LogFile
from runner.train.progress import StepReporter


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the bar's own thread
def test_a_terminal_that_is_closed_takes_the_progress_bar_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.model_validate(changed(TINY, {"output": {"folder": str(tmp_path), "progress": "on"}}))
    user, terminal = os.openpty()
    monkeypatch.setattr(sys, "stdout", os.fdopen(terminal, "w"))
    monkeypatch.setenv("TERM", "xterm")
    steps: list[StepEnded] = []
    ledger: Any = SimpleNamespace(record=steps.append)
    log: Any = SimpleNamespace(info=lambda *_, **__: None)
    for life in range(2):  # the next one in the same process meets the same
        with StepReporter(recipe, ledger, log, rank=0) as reporter:
            reporter.step(StepEnded(1, 0.1, 0.0, 8, 1.0, 1e-3, 1.0))
            if life == 0:
                os.close(user)
            reporter.step(StepEnded(2, 0.1, 0.0, 8, 1.0, 1e-3, 1.0))
    assert [event.step for event in steps] == [1, 2, 1, 2]
