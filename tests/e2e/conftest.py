"""Runs that several tests compare with are made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from product import LAYERS, Run, make_run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tiny recipe without faults, two ranks, finished."""
    run = make_run(tmp_path_factory.mktemp("undisturbed"), {"recovery": LAYERS["none"]})
    run.finish()
    return run
