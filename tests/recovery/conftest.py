"""Fixtures of the recovery tests."""

from __future__ import annotations

import pytest
from tinylab import tiny_server, tiny_starter


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A fork server of tiny workers, for all tests."""
    with tiny_server(tmp_path_factory.mktemp("server")) as socket:
        yield socket


@pytest.fixture
def tiny(tmp_path, server):
    """Starts launches of the tiny worker in one folder; checks that no process outlives the test."""
    yield from tiny_starter(tmp_path, server)
