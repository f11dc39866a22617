"""Processes beside the workers that somebody has stopped are woken; workers are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from runner.launch.thaw import LOOKS, Frozen, beside_workers
from runner.system.process import children_by_parent, process_name, state_of


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


def test_what_a_worker_has_started_is_woken_but_for_its_data_workers(stopped: int) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        writer = int(worker.stdout.readline())
        until = time.monotonic() + 20
        while process_name(writer) != "sleep":  # else it is still the shell's
            assert time.monotonic() < until
        beside = beside_workers([], {worker.pid})
        assert worker.pid not in beside and writer in beside
        assert writer not in beside_workers([], set()), "of a worker that has not signed nothing is known"
        os.kill(writer, signal.SIGKILL)
    name = "from runner.system.process import *; name_this_process(DATA_WORKER); print(flush=True); input()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {name!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as worker:
        assert worker.stdin is not None and worker.stdout is not None and worker.stdout.readline()
        (data_worker,) = children_by_parent()[worker.pid]
        assert data_worker not in beside_workers([], {worker.pid})
        worker.communicate(b"\n")
