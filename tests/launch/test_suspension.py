"""A command that was stopped notes for how long, as it runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from runner.ledger.events import Suspended
from runner.ledger.reader import read_run

_CODE = """
import sys
from pathlib import Path
from runner.launch.watch.suspension import SuspensionWatch
from runner.ledger.writer import LedgerWriter
ledger = LedgerWriter(Path(sys.argv[1]), rank=-1, life="l")
with SuspensionWatch(ledger, least=float(sys.argv[2])):
    print("watching", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_was_stopped_says_for_how_long(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CODE, str(tmp_path), "1.5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        stopped = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(2)
        woken = time.monotonic()
        process.send_signal(signal.SIGCONT)
        while not _noted(tmp_path, stopped, woken):
            assert time.monotonic() < woken + 60
            time.sleep(0.05)
        process.stdin.close()


def _noted(folder: Path, stopped: float, woken: float) -> bool:
    """Whether a suspension is on record that holds the time from `stopped` to `woken`."""
    return any(
        record.stamp.m - record.event.seconds < stopped + 0.5 and record.stamp.m >= woken
        for record in read_run(folder).records
        if isinstance(record.event, Suspended)
    )
