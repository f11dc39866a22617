"""Fixtures that several rooms share."""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

import pytest

from runner.launch.network import free_port as find_free_port
from runner.launch.network import is_free

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nvrx_releases.py serves several rooms


def pytest_sessionstart() -> None:
    """Tests start hundreds of processes: compile the product once, also where Python is told to keep no bytecode."""
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "runner", quiet=1)


@pytest.fixture
def free_port() -> int:
    """A port of which it and the one after it are free now."""
    for _ in range(50):
        port = find_free_port("127.0.0.1")
        if port < 65535 and is_free(port) and is_free(port + 1):
            return port
    raise RuntimeError("no two neighbouring ports are free")
