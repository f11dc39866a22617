"""The end of NVRx's monitor process must not depend on whether it still reads."""

from __future__ import annotations

import multiprocessing
import threading
import time
from types import SimpleNamespace

from runner.recovery.nvrx import MonitorProcess


def test_a_rank_does_not_wait_for_a_monitor_that_was_killed():
    queue = multiprocessing.get_context("spawn").Queue()
    for _ in range(2000):
        queue.put(b"x" * 1000)  # more than a pipe holds, and nobody reads it
    monitor = SimpleNamespace(should_stop=threading.Event(), msg_queue=queue)
    began = time.monotonic()
    MonitorProcess.shutdown(monitor)
    assert time.monotonic() - began < 30
    assert monitor.should_stop.is_set()
