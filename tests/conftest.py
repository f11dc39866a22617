"""Fixtures that several rooms share."""

from __future__ import annotations

import compileall
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.launch.network import ReservedPort

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nvrx_releases.py serves several rooms


def pytest_sessionstart() -> None:
    """Tests start hundreds of processes: compile the product once, also where Python is told to keep no bytecode."""
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "runner", quiet=1)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nothing listens; it and the one after it are kept for whoever names them."""
    with contextlib.ExitStack() as held:
        for _ in range(50):
            port = held.enter_context(contextlib.closing(ReservedPort())).number
            with contextlib.suppress(OSError, OverflowError):
                held.enter_context(contextlib.closing(ReservedPort(port + 1)))
                break
        else:
            raise RuntimeError("no two neighbouring ports are free")
        yield port
