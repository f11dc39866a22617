"""NVRx's monitors may be killed or frozen: the rank that they watch must not wait for them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClientError
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

from runner.errors import MonitorGoneError
from runner.recovery import nvrx, rank_monitor


def test_a_rank_does_not_wait_for_a_monitor_that_was_killed():
    queue = multiprocessing.get_context("spawn").Queue()
    for _ in range(2000):
        queue.put(b"x" * 1000)  # more than a pipe holds, and nobody reads it
    monitor = SimpleNamespace(should_stop=threading.Event(), msg_queue=queue)
    began = time.monotonic()
    nvrx.MonitorProcess.shutdown(monitor)
    assert time.monotonic() - began < 30
    assert monitor.should_stop.is_set()


def beat(pipe: Any) -> None:
    """A rank: connects, waits for a word, and tells what became of its next heartbeat."""
    client = rank_monitor.connect_to_rank_monitor()
    pipe.send("connected")
    pipe.recv()
    try:
        rank_monitor.send_heartbeat(client)
    except (RankMonitorClientError, MonitorGoneError) as error:
        pipe.send(str(error))
    else:
        pipe.send("answered")


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSTOP, "could not send the heartbeat"),
        (signal.SIGKILL, "the monitor of rank 0 is gone, and ft_launcher makes no other"),
    ],
)
def test_a_heartbeat_to_a_monitor_that_is_frozen_or_gone_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, says: str
) -> None:
    """A frozen monitor of ft_launcher up to 0.5 kills nobody, and its rank would hang for ever."""
    path = str(tmp_path / "monitor")
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "FT_RANK_MONITOR_IPC_SOCKET": path,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_monitor, "ANSWER_TIMEOUT", 1.0)
    fork = multiprocessing.get_context("fork")
    cfg = FaultToleranceConfig(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)
    monitor = RankMonitorServer.run_in_subprocess(cfg, path, mp_ctx=fork)
    ours, theirs = fork.Pipe()
    rank = fork.Process(target=beat, args=(theirs,))
    rank.start()
    try:
        assert ours.poll(30) and ours.recv() == "connected"
        os.kill(monitor.pid, number)
        ours.send("go on")
        assert ours.poll(30), "it waits for ever"
        assert says in ours.recv()
    finally:
        for process in (rank, monitor):
            process.kill()
            process.join(10)
