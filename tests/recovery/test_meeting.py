"""Ranks meet as soon as rank 0 is there; those that never meet end with a reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from tinylab import HERE, recipe_text

from runner.errors import ExitCode
from runner.launch.network import free_port
from runner.launch.outcome import OutcomeReader
from runner.recovery.meeting import Meeting


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


def test_a_server_that_comes_a_little_later_is_found_at_once() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        meeting = Meeting("127.0.0.1", server.getsockname()[1])
        served = threading.Timer(0.3, server.listen)
        served.start()
        began = time.monotonic()
        meeting.await_server(timedelta(seconds=30))
        assert served.finished.is_set()
        assert time.monotonic() - began < 5, "long before its limit"


def test_a_server_that_never_comes_is_waited_for_within_the_limit() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        began = time.monotonic()
        Meeting("127.0.0.1", nobody.getsockname()[1]).await_server(timedelta(seconds=0.5))
        assert 0.5 <= time.monotonic() - began < 5
