"""A failed save as a user meets it: `nvrx-run` ends with the documented code, says why, and is not started again."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

import pytest
from product import LAYERS, make_run

from runner.errors import ExitCode


@pytest.mark.slow  # tests/e2e/test_full_disk.py has a run that does not come to a save
def test_a_full_disk_ends_the_command_with_its_own_exit_code(tmp_path: Path, small_disk: Path) -> None:
    run = make_run(
        tmp_path,
        {
            "recovery": LAYERS["ft_launcher"],  # would restart a crash; this it must not
            "checkpoint.folder": str(small_disk / "c"),
            "model.architecture.hidden_size": 256,
        },
    )
    done = run.command()
    assert done.returncode == ExitCode.SAVE_FAILED, done.stdout + done.stderr
    assert f"the save of step 4 to {small_disk / 'c'}/step-4." in done.stdout + done.stderr
    assert "No space left" in done.stdout + done.stderr
    failed = run.events("SaveFailed")
    assert {event["rank"] for event in failed} == {0, 1} and {event["step"] for event in failed} == {4}
    assert len(run.events("Loaded")) == 2  # one life
