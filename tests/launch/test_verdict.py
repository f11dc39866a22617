"""What a supervisor says of a launch whose workers left no word."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.errors import ExitCode
from runner.launch.verdict import MEETING_OVER, Watch, conclude
from runner.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("watch", "says"),
    [
        (
            Watch(launcher_status=-9, workers_came=True),
            "the launcher was killed (SIGKILL); the same command resumes the run",
        ),
        (Watch(launcher_status=1, workers_came=True), "a worker failed; the same command resumes the run"),
        (Watch(launcher_status=1), "the launcher failed before any worker started: no such option"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, watch: Watch, says: str) -> None:
    path, log = tmp_path / "recipe.yaml", tmp_path / "launcher.log"
    path.write_text(recipe_text(tmp_path, "none"))
    log.write_text("no such option\n=========\n")
    verdict = conclude([], watch, load_recipe(path).recipe, log)
    assert (verdict.exit_code, verdict.message) == (ExitCode.CRASHED, says)


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
