"""What can go wrong before a run has begun: one line, the right code, nothing made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.errors import ExitCode

NVRX_RUN = str(Path(sys.executable).with_name("nvrx-run"))


def struck(number: signal.Signals, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`nvrx-run ARGUMENTS` that gets a signal in the moment in which it would read its recipe."""
    program = (
        "import os, sys\n"
        "from runner import cli\n"
        f"cli._load = lambda arguments: os.kill(os.getpid(), {int(number)})\n"
        f"sys.exit(cli.main({list(arguments)!r}))\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_before_anything_is_started_ends_with_the_code_for_it(number: signal.Signals) -> None:
    done = struck(number, "recipe.yaml")
    assert done.returncode == ExitCode.PREEMPTED, done.stderr
    assert done.stdout == ""
    assert done.stderr == (
        f"nvrx-run: {number.name}: stopped before anything was started; the same command starts it\n"
    )


@pytest.mark.parametrize("action", [[], ["--checkpoints"]])
def test_a_path_that_the_locale_cannot_name_is_one_line_with_the_remedy(
    tmp_path: Path, action: list[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    folder = tmp_path / "läufe"
    recipe.write_text(recipe_text(folder, "none"), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [NVRX_RUN, *action, str(recipe)],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | ascii_only,
    )  # fmt: skip
    assert done.returncode == ExitCode.BAD_RECIPE
    (line,) = done.stderr.splitlines()
    assert "the locale's ascii has no '\\xe4'; use one of UTF-8, e.g. LC_ALL=C.UTF-8" in line
    assert not folder.exists()
