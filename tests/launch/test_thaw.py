"""Processes beside the workers that somebody has stopped are woken; workers are not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from runner.launch.process import state_of
from runner.launch.thaw import LOOKS, Frozen, beside_workers


@pytest.fixture
def stopped() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 20
        while state_of(process.pid) != "T":
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process.pid
        process.kill()


def test_what_stays_stopped_is_woken_and_what_goes_on_by_itself_is_not(stopped: int) -> None:
    frozen = Frozen()
    for _ in range(2):
        assert [frozen.wake([stopped]) for _ in range(LOOKS - 1)] == [[]] * (LOOKS - 1)
        assert frozen.wake([]) == []  # it went on for a moment
    assert [frozen.wake([stopped]) for _ in range(LOOKS)][-1] == [stopped]
    until = time.monotonic() + 20
    while state_of(stopped) == "T":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_workers_are_left_to_their_recovery_layer(stopped: int) -> None:
    assert stopped in beside_workers([], set())
    assert stopped not in beside_workers([os.getpid()], {stopped})
