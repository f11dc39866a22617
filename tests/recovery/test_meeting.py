"""Ranks that never meet end with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tinylab import HERE, recipe_text

from runner.errors import ExitCode
from runner.launch.network import free_port
from runner.launch.outcome import OutcomeReader


def test_a_rank_that_does_not_find_rank_0_says_so_and_takes_no_blame(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none", process_group_timeout="1s"))
    outcomes = OutcomeReader(tmp_path / "run")
    place = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    program = [sys.executable, str(HERE / "tiny_worker.py"), str(recipe)]
    done = subprocess.run(
        program, env=os.environ | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.CRASHED, done.stderr
    (outcome,) = outcomes.outcomes()
    assert outcome.message.startswith("rank 1 did not meet the other ranks: ")
    assert outcome.consequence
