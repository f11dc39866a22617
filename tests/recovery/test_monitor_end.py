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

from runner.recovery import nvrx


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
    client = nvrx.connect_to_rank_monitor()
    pipe.send("connected")
    pipe.recv()
    try:
        client.send_heartbeat()
    except RankMonitorClientError as error:
        pipe.send(str(error))
    else:
        pipe.send("answered")


def test_a_heartbeat_that_a_frozen_monitor_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ft_launcher up to 0.5; a frozen monitor kills nobody, and its rank would hang for ever."""
    path = str(tmp_path / "monitor")
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "FT_RANK_MONITOR_IPC_SOCKET": path,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvrx, "ANSWER_TIMEOUT", 1.0)
    fork = multiprocessing.get_context("fork")
    cfg = FaultToleranceConfig(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)
    monitor = RankMonitorServer.run_in_subprocess(cfg, path, mp_ctx=fork)
    ours, theirs = fork.Pipe()
    rank = fork.Process(target=beat, args=(theirs,))
    rank.start()
    try:
        assert ours.poll(30) and ours.recv() == "connected"
        os.kill(monitor.pid, signal.SIGSTOP)
        ours.send("go on")
        assert ours.poll(30), "it waits for ever"
        assert "could not send the heartbeat" in ours.recv()
    finally:
        for process in (rank, monitor):
            process.kill()
            process.join(10)
