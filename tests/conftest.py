"""Fixtures that several rooms share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.launch.network import free_port as find_free_port
from runner.launch.network import is_free

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nvrx_releases.py serves several rooms


@pytest.fixture
def free_port() -> int:
    """A port of which it and the one after it are free now."""
    for _ in range(50):
        port = find_free_port("127.0.0.1")
        if port < 65535 and is_free(port) and is_free(port + 1):
            return port
    raise RuntimeError("no two neighbouring ports are free")
