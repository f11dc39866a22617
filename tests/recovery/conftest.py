"""Fixtures of the recovery tests."""

from __future__ import annotations

import pytest
from tinylab import tiny_starter


@pytest.fixture
def tiny(tmp_path):
    """Starts launches of the tiny worker in one folder; checks that no process outlives the test."""
    yield from tiny_starter(tmp_path)
