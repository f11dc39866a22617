"""What becomes of a worker that has said what it ended with, and hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_recipe import TINY, changed

from runner.control import farewell
from runner.control.channel import Control
from runner.control.earlier import decisive
from runner.control.outcome import Outcome, OutcomeReader, write_outcome
from runner.control.presence import Presence
from runner.errors import ExitCode
from runner.faults.records import read_records
from runner.launch.watch.roll import Roll
from runner.launch.watch.verdict import Watch, conclude
from runner.launch.watch.watching import Workers
from runner.ledger.writer import LedgerWriter
from runner.recipe.recipe import Recipe

WORKER = """
import sys, time
from pathlib import Path
from runner.control.presence import Presence
rank = int(sys.argv[2])
presence = Presence(Path(sys.argv[1]), rank=rank, local_rank=rank, restart=0)
presence.live("1-a")
presence.step(4)
if sys.argv[3] == "done":
    presence.finish(lambda: None, 0.2)
elif sys.argv[3] == "writes":
    presence.finish(lambda: print("here", flush=True) or time.sleep(60), 0.2)
elif sys.argv[3] == "leaves":
    presence.ends(0.2)
print("here", flush=True)
time.sleep(60)
"""


class Node:
    """The workers of one launch under their supervisor's eyes."""

    def __init__(self, folder: Path, layer: str, run: Path | None = None) -> None:
        self.folder, self.run, self.log = folder, run or folder / "run", folder / "launcher.log"
        self.run.mkdir(exist_ok=True)
        self.log.touch()
        recovery = {"layer": layer, "process_group_timeout": "60s"}
        nodes = {} if run is None else {"cluster.nodes": 2}
        self.recipe = Recipe.model_validate(changed(TINY, {"recovery": recovery} | nodes))
        self.outcomes = OutcomeReader(self.run, folder)
        self.ledger = LedgerWriter(self.run, rank=-1, life="launch")
        self.workers = Workers(self.recipe, folder, self.run, self.log, self.outcomes, self.ledger)
        self.workers._overdue._grace = 0.2
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, what: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, str(self.folder), str(rank), what]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        return process

    def look_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < until
            self.workers.look()
            time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    made: list[Node] = []

    def make(layer: str) -> Node:
        made.append(Node(tmp_path, layer))
        return made[-1]

    yield make
    for process in made[0].processes:
        process.kill()
        process.communicate()
    made[0].ledger.close()


@pytest.mark.parametrize(
    "status", [0, 1]
)  # of a launcher under a fork server, and of one whose worker was killed
def test_a_rank_that_hangs_when_it_is_done_is_killed_and_named_and_the_run_is_done(
    node: Callable[[str], Node], capsys: pytest.CaptureFixture[str], status: int
) -> None:
    it = node("none")
    ends, hangs = it.start(0, "done"), it.start(1, "done")
    it.workers.look()
    assert it.workers.pids() == set(), "a stopped process that is done is woken"
    ends.terminate()
    it.look_until(lambda: hangs.poll() == -signal.SIGKILL)
    assert not it.workers.launch_can_only_end()
    watch = it.workers.settle(status, "")
    assert conclude(it.outcomes.outcomes(), watch, it.recipe, it.log).exit_code == ExitCode.DONE
    said = capsys.readouterr().err
    assert "rank 1 hung in its own end: not gone after 0.2 s (recovery.start_timeout), and was killed" in said
    (record,) = [record for record in read_records(it.run) if record.rank == 1]
    assert (record.kind, record.step, record.attempt) == ("hang", 4, "1-a")
    assert "time.sleep" in record.stacks or "<string>" in record.stacks


def test_a_rank_that_hangs_before_it_is_done_is_a_fault_like_any_hang(node: Callable[[str], Node]) -> None:
    it = node("none")
    it.workers._ends._bound = 60.0
    it.start(0, "done")
    hangs = it.start(1, "writes")
    it.look_until(lambda: hangs.poll() == -signal.SIGKILL)
    verdict = conclude(it.outcomes.outcomes(), it.workers.settle(1, ""), it.recipe, it.log)
    assert verdict.exit_code == ExitCode.CRASHED
    assert verdict.message.startswith("rank 1 hung in its own end: not gone after 0.2 s")


def test_a_rank_that_is_not_done_long_after_another_was_is_killed_and_blamed(
    node: Callable[[str], Node],
) -> None:
    it = node("none")
    it.workers._ends._bound = 0.5
    assert it.start(0, "done").poll() is None
    hangs = it.start(1, "goes on")
    it.look_until(lambda: hangs.poll() == -signal.SIGKILL)
    assert it.workers.launch_can_only_end()
    verdict = conclude(it.outcomes.outcomes(), it.workers.settle(1, ""), it.recipe, it.log)
    assert verdict.exit_code == ExitCode.CRASHED
    assert verdict.message.startswith(
        "rank 1 hung at the end of the run: another rank had been done for 0.5 s, and was killed after step 4"
    )


@pytest.mark.parametrize("stopped", [True, False])
def test_a_rank_is_not_waited_for_long_after_those_of_another_node_were_done(
    tmp_path: Path, stopped: bool
) -> None:
    """With one rank a node, none of its own is left to miss it."""
    nodes = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, "none", tmp_path / "run"))
    first, second = nodes
    hangs, ends = first.start(0, "goes on"), second.start(1, "done")
    if stopped:
        hangs.send_signal(signal.SIGSTOP)
        first.workers._ends._frozen = 0.5
    else:
        first.workers._ends._bound = 0.5
    try:
        first.workers.look()
        assert hangs.poll() is None
        second.workers.look()  # tells the others
        first.look_until(lambda: hangs.poll() == -signal.SIGKILL)
        verdict = conclude(first.outcomes.outcomes(), first.workers.settle(1, ""), first.recipe, first.log)
        assert verdict.exit_code == ExitCode.CRASHED
        frozen = ", frozen (SIGSTOP)" if stopped else ""
        assert verdict.message.startswith(
            f"rank 0 hung at the end of the run{frozen}: another rank had been done for 0.5 s, and was killed"
        )
        (record,) = read_records(first.run)
        assert (record.kind, record.rank, record.consequence) == ("hang", 0, False)
        assert second.workers.launch_can_only_end(), "its launcher would wait for the other for minutes"
        for status in (0, -signal.SIGTERM):
            said = conclude(second.outcomes.outcomes(), Watch(status), second.recipe, second.log)
            assert (said.exit_code, said.message) == (ExitCode.CRASHED, verdict.message)
    finally:
        for it, process in ((first, hangs), (second, ends)):
            process.kill()
            process.communicate()
            it.ledger.close()


def test_a_rank_that_hangs_while_it_leaves_with_a_fault_is_killed_and_blamed_for_the_fault(
    node: Callable[[str], Node],
) -> None:
    it = node("ft_launcher")
    hangs = it.start(1, "leaves")
    write_outcome(it.run, Outcome(1, "rank 1 after step 4: ValueError", rank=1, step=4, attempt="1-a"))
    it.look_until(lambda: hangs.poll() == -signal.SIGKILL)
    watch = it.workers.settle(1, "")
    assert watch.deaths == []
    message = conclude(it.outcomes.outcomes(), watch, it.recipe, it.log).message
    assert message.startswith("rank 1 after step 4: ValueError")


def test_a_launcher_that_starts_all_again_after_the_run_was_done_is_ended_and_the_run_is_done(
    node: Callable[[str], Node],
) -> None:
    """As it does for a worker that crashed in its end, where no fork server tells it otherwise."""
    it = node("ft_launcher")
    write_outcome(it.run, Outcome(0, "finished", rank=0, step=4, attempt="1-a"))
    ended = [it.start(0, "done"), it.start(1, "done")]
    it.look_until(lambda: all(process.poll() is not None for process in ended))
    assert not it.workers.launch_can_only_end()
    it.start(0, "hangs at exit")
    it.look_until(it.workers.launch_can_only_end)
    it.processes[-1].kill()
    verdict = conclude(it.outcomes.outcomes(), it.workers.settle(-signal.SIGTERM, ""), it.recipe, it.log)
    assert verdict.exit_code == ExitCode.DONE


def test_one_that_was_killed_and_does_not_go_ends_the_launch(
    node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.launch.watch.ends.LONGEST_KILL", 0.0)
    it = node("ft_launcher")
    stuck = it.start(0, "done")
    monkeypatch.setattr("runner.launch.watch.overdue.os.kill", lambda *_: None)  # storage hangs
    it.look_until(it.workers.launch_can_only_end)
    assert stuck.poll() is None


def test_a_process_is_not_done_because_one_before_it_with_its_number_was(tmp_path: Path) -> None:
    first = Presence(tmp_path, rank=0, local_rank=0, restart=0)
    first.finish(lambda: None, 60)
    Roll(tmp_path).newcomers()
    assert farewell.is_done(tmp_path, os.getpid())
    second = Presence(tmp_path, rank=0, local_rank=0, restart=1)
    roll = Roll(tmp_path)
    roll.newcomers()
    assert not roll.all_done
    second.leave()


def test_workers_that_a_launcher_starts_once_more_after_the_run_was_done_have_nothing_left_to_do(
    tmp_path: Path,
) -> None:
    write_outcome(tmp_path, Outcome(0, "finished", rank=0, step=4, attempt="1-a"))
    found = decisive(tmp_path, Control(None), frozenset())
    assert found is not None and found.message == "finished"
