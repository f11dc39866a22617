"""A worker that hangs while it starts is killed and named; one that waits for another rank is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.control.presence import Presence
from runner.faults.records import read_records
from runner.launch.watch.deaths import Deaths
from runner.launch.watch.overdue import Overdue, OverdueWorkers
from runner.launch.watch.roll import Roll

LIMIT = 0.3  # seconds

HANGS = "import ctypes; ctypes.CDLL(None).pause()"
HOLDS_THE_INTERPRETER = "import ctypes; ctypes.PyDLL(None).sleep(100)"
FREEZES = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
WAITS = "import time\nwhile True: time.sleep(0.05)"


class Node:
    """Workers of one node, each a process that announces itself and then does one thing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roll = Roll(folder)
        self.watch = OverdueWorkers(self.roll, folder, grace=0.5)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, part: str, where: str = "work.py") -> int:
        """Returns the process id of a worker that runs `code`, from a file called `where`, in `part` of its start."""
        rank = len(self.processes)
        file = self.folder / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        program = (
            "import os, pathlib\n"
            "from runner.control.presence import Presence\n"
            f"p = Presence(pathlib.Path({str(self.folder)!r}), rank={rank}, local_rank={rank}, restart=0)\n"
            f"p.live('life')\np.starting({part!r}, {LIMIT})\n"
            f"exec(compile(pathlib.Path({str(file)!r}).read_text(), {str(file)!r}, 'exec'))\n"
        )
        self.processes.append(subprocess.Popen([sys.executable, "-c", program]))
        return self.processes[-1].pid

    def killed(self, count: int) -> list[Overdue]:
        """What is killed until there are `count` of them, and a little longer."""
        found: list[Overdue] = []
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found += self.watch.kill(time.monotonic())
            if len(found) >= count:
                until = min(until, time.monotonic() + 1.0)
            time.sleep(0.02)
        return sorted(found, key=lambda overdue: overdue.sign.rank)


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_whoever_hangs_is_killed_and_whoever_waits_for_it_is_not(node, tmp_path):
    pids = [
        node.start(WAITS, "model", "runner/recovery/meeting.py"),
        node.start(HANGS, "model", "native.py"),
        node.start(HOLDS_THE_INTERPRETER, "data", "holding.py"),
        node.start(FREEZES, "restore", "frozen.py"),
        node.start(WAITS, "imports", "site/torch/distributed/slow.py"),
    ]
    killed = node.killed(4)
    assert [overdue.sign.pid for overdue in killed] == pids[1:]
    assert [process.poll() for process in node.processes] == [None] + [-signal.SIGKILL] * 4
    assert [
        line in overdue.stacks for line, overdue in zip(("native.py", "holding.py"), killed, strict=False)
    ] == [
        True,
        True,
    ]
    assert str(killed[0]) == "in start-up (model): not done after 0.3 s (recovery.start_timeout)"
    assert str(killed[2]) == "in start-up (restore): not done after 0.3 s (checkpoint.load_timeout), frozen"

    log = tmp_path / "launcher.log"
    log.write_text("")
    deaths = Deaths(log, tmp_path, "none")
    death = deaths.add_overdue(killed[0])
    assert str(death).startswith("rank 1 hung in start-up (model)")
    deaths.settle(finally_=True)
    (record,) = read_records(tmp_path)
    assert (record.kind, record.rank, record.attempt, record.consequence) == ("hang", 1, "life", False)
    assert "native.py" in record.stacks


def test_time_in_which_the_supervisor_itself_was_stopped_does_not_count(tmp_path):
    presence = Presence(tmp_path, rank=0, local_rank=0, restart=0)
    presence.starting("model", 0.01)
    watch = OverdueWorkers(Roll(tmp_path), tmp_path, grace=1e9)
    now = time.monotonic() + 1
    watch.kill(now)
    watch.kill(now + 10_000)
    (seen,) = watch._overdue_for.values()
    assert seen <= 1.0
    presence.leave()


def test_start_up_that_is_over_is_watched_no_more(tmp_path):
    presence = Presence(tmp_path, rank=0, local_rank=0, restart=0)
    presence.starting("model", 0.01)
    (sign,) = Roll(tmp_path).starting()
    assert (sign.pid, sign.part, sign.longest) == (os.getpid(), "model", 0.01)
    presence.live("a")
    presence.step(7)
    presence.started()
    assert Roll(tmp_path).starting() == []
    presence.leave()
    assert list((tmp_path / "stacks").iterdir()) == []
