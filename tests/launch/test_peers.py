"""A worker that died, how it ended, and the others of its start that are to end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_recipe import TINY, changed

from runner.control.outcome import Outcome, OutcomeReader, read_outcome, write_outcome
from runner.control.signs import WorkerSign
from runner.errors import ExitCode
from runner.faults.records import FaultRecord, read_records, write_record
from runner.faults.schedule import post_mortem
from runner.launch.watch.deaths import Deaths
from runner.launch.watch.roll import Roll
from runner.launch.watch.verdict import conclude
from runner.launch.watch.watching import Workers
from runner.ledger.events import FaultSeen
from runner.ledger.reader import read_run
from runner.ledger.writer import LedgerWriter
from runner.recipe.recipe import Recipe
from runner.system.process import state_of

WORKER = """
import sys, time
from pathlib import Path
from runner.control.presence import Presence
rank = int(sys.argv[3])
presence = Presence(Path(sys.argv[1]), rank=rank, local_rank=rank, restart=int(sys.argv[2]))
presence.live(sys.argv[4])
print("here", flush=True)
time.sleep(60)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts workers of a start of the launcher."""
    started: list[subprocess.Popen[bytes]] = []

    def start(restart: int, rank: int = 0, life: str = "") -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, str(tmp_path), str(restart), str(rank), life]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def watched(tmp_path: Path, layer: str, nodes: int = 1) -> tuple[Workers, Path, LedgerWriter]:
    """The workers of a launch, the run's folder, the supervisor's ledger."""
    cluster = {"accelerator": "cpu", "processes_per_node": 2, "nodes": nodes}
    recipe = Recipe.model_validate(changed(TINY, {"recovery": {"layer": layer}, "cluster": cluster}))
    log, run = tmp_path / "launcher.log", tmp_path / "run"
    log.touch()
    run.mkdir()
    ledger = LedgerWriter(run, rank=-1, life="launch")
    return Workers(recipe, tmp_path, run, log, OutcomeReader(run, tmp_path), ledger), run, ledger


def seen(run: Path) -> list[object]:
    """The faults that the account was told of, in order."""
    return [record.event for record in read_run(run).records if isinstance(record.event, FaultSeen)]


def test_the_workers_to_end_with_a_dead_one_are_those_of_its_start_that_live(
    tmp_path: Path, worker: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    roll = Roll(tmp_path)
    gone, zombie, alive, _ = worker(1), worker(1), worker(1), worker(2)
    gone.kill()
    gone.wait()
    zombie.kill()
    dead: dict[int, WorkerSign] = {}
    end = time.monotonic() + 20
    while len(dead) < 2:
        dead |= {sign.pid: sign for sign in roll.dead()}
        assert time.monotonic() < end
    assert [sign.pid for sign in roll.others(dead[gone.pid])] == [alive.pid]


def test_a_frozen_worker_that_outlives_its_launcher_for_a_moment_is_the_one_that_hung(
    tmp_path: Path, worker: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    """Its peer has said that it waited for it in vain; the launcher's last act is to kill it."""
    workers, run, ledger = watched(tmp_path, "none")
    frozen = worker(0)
    workers.look()
    frozen.send_signal(signal.SIGSTOP)
    write_outcome(run, Outcome(1, "rank 1: Timed out waiting 15000ms", 1, 4, "a", 0, consequence=True))
    threading.Timer(0.3, frozen.kill).start()
    (death,) = workers.settle(1, "").deaths
    assert str(death) == "rank 0 hung, and was stopped"
    ledger.close()


def test_workers_that_die_with_their_killed_launcher_are_not_to_blame(
    tmp_path: Path, worker: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    one = worker(0)
    workers.look()
    one.kill()
    watch = workers.settle(-signal.SIGKILL, "")
    says = "the launcher was killed (SIGKILL)"
    assert (watch.deaths, watch.outside) == ([], says)
    assert [(record.kind, record.rank, record.what) for record in read_records(run)] == [("died", -1, says)]
    ledger.close()
    assert seen(run) == [FaultSeen("launcher", says)]


@pytest.mark.parametrize("layer", ["ft_launcher", "none"])
def test_what_a_worker_says_or_dies_of_when_its_launcher_is_killed_only_follows_from_that(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]], layer: str
) -> None:
    """The kernel ends children before their parent can be waited for, and a monitor of a rank with its launcher."""
    workers, run, ledger = watched(tmp_path, layer)
    dead, _ = worker(0, 0, "1-a"), worker(0, 1, "1-a")
    workers.look()
    dead.kill()
    dead.wait()
    workers.look()
    gone = "RankMonitorClientError: Unexpected reply: None. Expected OkMsg"
    write_outcome(run, Outcome(1, gone, 1, 4, "1-a", 0, launch_over=layer == "ft_launcher"))
    write_record(run, FaultRecord("exception", 1, 4, layer, "1-a", gone))
    watch = workers.settle(-signal.SIGKILL, "")
    ledger.close()
    says = "the launcher was killed (SIGKILL)"
    recipe = Recipe.model_validate(changed(TINY, {"output.folder": str(run)}))
    verdict = conclude(outcomes_of(run), watch, recipe, tmp_path / "launcher.log")
    assert verdict.message == f"{says}; the same command resumes the run"
    assert f"   {says} after step 0\n" in post_mortem(run) and "faults that happened (1)" in post_mortem(run)
    assert seen(run)[-1] == FaultSeen("launcher", says)


def outcomes_of(run: Path) -> list[Outcome]:
    """All outcomes that were ever written there."""
    read = [read_outcome(path) for path in (run / "outcome").iterdir()]
    return [outcome for outcome in read if outcome is not None]


def test_a_rank_that_ended_a_launch_is_blamed_though_its_launcher_is_killed_while_it_ends(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    workers, run, ledger = watched(tmp_path, "none")
    write_outcome(run, Outcome(1, "rank 1: ValueError", 1, 4, "1-a", 0, time=time.time() - 20))
    workers.look()
    watch = workers.settle(-signal.SIGKILL, "")
    ledger.close()
    assert watch.outside == ""


def test_workers_that_are_seen_to_be_gone_before_their_killed_fork_server_are_not_to_blame(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """The kernel ends them first, and the launcher knows at once how their clients ended."""
    workers, run, ledger = watched(tmp_path, "none")
    one = worker(0, 0, "1-a")
    workers.look()
    one.kill()
    one.wait()
    (tmp_path / "launcher.log").write_text("failed (exitcode: 1) local_rank: 0 (pid: 7)\n")
    workers.look(server_killed=lambda: -signal.SIGKILL)
    watch = workers.settle(1, "")
    ledger.close()
    says = "the fork server was killed (SIGKILL), and its workers with it"
    assert (watch.outside, workers.untold) == (says, says)
    assert [(record.rank, record.what) for record in read_records(run)] == [(-1, says)]
    assert seen(run) == [FaultSeen("launcher", says)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_whose_monitor_process_was_killed_is_ended_and_that_is_what_is_told(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    workers, run, ledger = watched(tmp_path, "inprocess")
    one = worker(0, 1, "1-a-0")
    with subprocess.Popen(["sleep", "60"]) as monitor:
        (tmp_path / "monitors").mkdir()
        (tmp_path / "monitors" / str(one.pid)).write_text(str(monitor.pid))
        workers.look()
        assert list(workers.monitors()) == [monitor.pid] and one.poll() is None
        monitor.send_signal(number)
        until = time.monotonic() + 20
        while one.poll() is None:
            assert time.monotonic() < until
            workers.look()
            time.sleep(0.01)
    write_record(run, FaultRecord("exception", 0, 4, "inprocess", "1-a-0", "RuntimeError: closed", True))
    watch = workers.settle(1, "")
    ledger.close()
    says = f"NVRx's monitor process of rank 1 was killed ({number.name}), which ended the rank"
    recipe = Recipe.model_validate(changed(TINY, {"output.folder": str(run)}))
    verdict = conclude([], watch, recipe, tmp_path / "launcher.log")
    assert verdict.message == f"{says} after step 0; the same command resumes the run"
    assert f"   died on rank 1 after step 0: {says}\n" in post_mortem(run)
    assert "faults that happened (1)" in post_mortem(run)
    assert seen(run) == [FaultSeen("inprocess", f"{says} after step 0")]


def test_a_monitor_process_that_was_killed_before_its_rank_named_it_is_missed_all_the_same(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """As while ranks wait for each other. Orphans are collected, and another one may get the number later."""
    workers, _, ledger = watched(tmp_path, "inprocess")
    one, other = worker(0, 0, "1-a-0"), worker(0, 1, "1-a-0")
    with subprocess.Popen(["sleep", "60"]) as monitor:
        workers.reaped({1 << 23: -signal.SIGKILL, monitor.pid: -signal.SIGKILL})
        (tmp_path / "monitors").mkdir()
        (tmp_path / "monitors" / str(one.pid)).write_text(str(1 << 23))  # no process has such a number
        (tmp_path / "monitors" / str(other.pid)).write_text(str(monitor.pid))
        workers.look()
        assert one.wait(20) == -signal.SIGKILL
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        monitor.kill()
    (death,) = workers.settle(1, "").deaths
    ledger.close()
    assert str(death) == "NVRx's monitor process of rank 0 was killed (SIGKILL), which ended the rank"


def test_a_monitor_process_that_has_ended_by_itself_ends_no_rank(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """As the one of a rank whose store went away with rank 0, on another node."""
    workers, _, ledger = watched(tmp_path, "inprocess")
    one = worker(0, 1, "1-a-0")
    monitor = subprocess.Popen(["false"])
    (tmp_path / "monitors").mkdir()
    (tmp_path / "monitors" / str(one.pid)).write_text(str(monitor.pid))
    os.waitid(os.P_PID, monitor.pid, os.WEXITED | os.WNOWAIT)
    workers.look()
    ledger.close()
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.5)
    monitor.wait()


def test_deaths_after_that_of_the_fork_server_follow_from_it_and_later_ones_do_not(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    says = "the fork server was killed (SIGKILL), and its workers with it"
    for life in ("1-a", "2-b"):
        one = worker(int(life[0]), 0, life)
        workers.look()
        if life == "1-a":
            workers.outside_fault(says)
        one.kill()
        one.wait()
        workers.look()
    workers.settle(1, "")
    ledger.close()
    assert seen(run) == [FaultSeen("launcher", says), FaultSeen("launcher", "rank 0 died after step 0")]
    causes = [(record.attempt, record.rank) for record in read_records(run) if not record.consequence]
    assert causes == [("1-a", -1), ("2-b", 0)]


@pytest.mark.parametrize("asked", ["", "SIGTERM"])
def test_workers_that_their_launcher_ends_because_it_was_told_to_are_not_to_blame(
    tmp_path: Path, worker: Callable[[int], subprocess.Popen[bytes]], asked: str
) -> None:
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    one = worker(0)
    workers.look()
    one.terminate()
    one.wait()
    workers.look()
    watch = workers.settle(1, asked, "SIGTERM")
    ledger.close()
    told = FaultSeen("launcher", "the launcher was ended by SIGTERM, and its workers with it")
    assert (seen(run)[-1] == told) == (watch.outside == told.reason) == (not asked)


@pytest.mark.parametrize(("layer", "ended"), [("ft_launcher", True), ("ft_launcher+inprocess", False)])
def test_peers_of_a_dead_worker_end_with_it_where_all_are_respawned(
    tmp_path: Path, worker: Callable[[int], subprocess.Popen[bytes]], layer: str, ended: bool
) -> None:
    workers, _, ledger = watched(tmp_path, layer)
    dead, peer = worker(0), worker(0)
    workers.look()
    assert peer.poll() is None
    dead.kill()
    dead.wait()
    workers.look()
    if ended:
        assert peer.wait(20) == -signal.SIGTERM
    else:  # NVRx's wrapper ends it, and may keep it
        with pytest.raises(subprocess.TimeoutExpired):
            peer.wait(1)
    ledger.close()


def test_the_fork_server_knows_how_a_worker_ended_whatever_the_launcher_says(
    tmp_path: Path,
) -> None:
    """The launcher names the first that it finds ended, which may be one that was ended because of the other."""
    log = tmp_path / "launcher.log"
    log.write_text("failed (exitcode: -15) local_rank: 0 (pid: 7) of binary: nvrx-worker\n")
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "41").write_text("-11")
    deaths = Deaths(log, tmp_path, "ft_launcher", forks=tmp_path)
    death = deaths.add(WorkerSign(pid=41, rank=1, local_rank=1, restart=0, attempt="a", step=4), [])
    assert death is not None
    deaths.settle()
    assert str(death) == "rank 1 died (SIGSEGV)"


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("said_by", ["fork server", "launcher"])
def test_of_two_that_vanished_between_two_looks_the_one_is_blamed_that_nobody_ended(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]], killed: int, said_by: str
) -> None:
    """On a busy machine the launcher has ended the peer before the supervisor looks; folders have no order."""
    both = [worker(0, rank) for rank in (0, 1)]
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    workers.look()
    for rank, process in enumerate(both):
        process.send_signal(signal.SIGKILL if rank == killed else signal.SIGTERM)
        code = process.wait()
        if said_by == "fork server":
            (tmp_path / "ended").mkdir(exist_ok=True)
            (tmp_path / "ended" / str(process.pid)).write_text(str(code))
    if said_by == "launcher":  # which names the first one only
        (tmp_path / "launcher.log").write_text(
            f"failed (exitcode: -9) local_rank: {killed} (pid: 7) of binary: w\n"
        )
    workers.look()
    workers.settle(1, "")
    ledger.close()
    assert [record.what for record in read_records(run)] == [f"rank {killed} died (SIGKILL)"]


def test_each_fault_is_known_on_a_node_whose_launcher_counts_no_restart_for_those_of_another(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A launcher ends its workers with SIGTERM when those of another node start again, and counts no restart for it."""
    workers, run, ledger = watched(tmp_path, "ft_launcher", nodes=2)

    def ends(number: signal.Signals, life: str) -> None:
        process = worker(0, 1, life)
        workers.look()
        process.send_signal(number)
        code = process.wait()
        (tmp_path / "ended").mkdir(exist_ok=True)
        (tmp_path / "ended" / str(process.pid)).write_text(str(code))
        workers.look()

    ends(signal.SIGTERM, "1-a")
    write_outcome(run, Outcome(1, "rank 0: ValueError", rank=0, step=4, attempt="1-a"))
    ends(signal.SIGKILL, "2-b")
    for life in ("3-c", "4-d", "5-e"):
        ends(signal.SIGTERM, life)
    assert workers.settle(1, "").hopeless == ""
    ledger.close()
    records = read_records(run)
    assert [record.what for record in records if not record.consequence] == ["rank 1 died (SIGKILL)"]
    assert {record.what for record in records if record.consequence} == {"rank 1 died (SIGTERM)"}


def test_the_first_to_fail_is_blamed_although_a_peer_is_gone_before_it(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel clears up behind it, a GPU's driver for half a second, when the launcher has ended the peer."""
    first, peer = worker(0, 0), worker(0, 1)
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    workers.look()
    monkeypatch.setattr("runner.launch.watch.roll.failing_with", {first.pid: -signal.SIGSEGV}.get)
    peer.terminate()
    peer.wait()
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / str(first.pid)).write_text(str(-signal.SIGSEGV))
    (tmp_path / "ended" / str(peer.pid)).write_text(str(-signal.SIGTERM))
    workers.look()
    ledger.close()
    assert [record.what for record in read_records(run)] == ["rank 0 died (SIGSEGV)"]


@pytest.mark.parametrize("said", [False, True])
def test_who_signs_late_and_is_ended_because_a_peer_has_failed_is_not_to_blame(
    tmp_path: Path, said: bool
) -> None:
    """On a busy machine a rank may fail in its start before another has signed at all."""
    log = tmp_path / "launcher.log"
    log.touch()
    deaths = Deaths(log, tmp_path, "ft_launcher")
    first, late = (WorkerSign(100 + rank, rank, rank, restart=2, attempt="", step=0) for rank in (1, 0))
    failed = Outcome(1, "rank 1: ValueError", rank=1, step=0, attempt="none-1", restart=2)
    outcomes = [failed] if said else []
    deaths.expect(first, [])
    assert said or deaths.add(first, []) is not None
    deaths.expect(late, outcomes)
    assert deaths.add(late, outcomes) is None


def test_each_death_before_the_ranks_met_has_a_record_of_its_own_and_counts_as_one_fault(
    tmp_path: Path,
) -> None:
    """Within one second, of one rank; the last two at starts that its launcher does not tell apart."""
    log = tmp_path / "launcher.log"
    log.touch()
    deaths = Deaths(log, tmp_path, "ft_launcher", alone=False)
    for pid, restart in ((101, 0), (102, 1), (103, 1)):
        sign = WorkerSign(pid, rank=1, local_rank=1, restart=restart, attempt="", step=0)
        deaths.expect(sign, [])
        death = deaths.add(sign, [])
        assert death is not None
        death.seen = 1_800_000_000.1 + pid / 1000
    deaths.settle(finally_=True)
    assert len(read_records(tmp_path)) == 3
    assert post_mortem(tmp_path).startswith("faults that happened (3)\n")


@pytest.mark.parametrize("seen_first", [0, 1])
def test_a_rank_that_hung_in_process_is_to_blame_whoever_is_seen_to_be_gone_first(
    tmp_path: Path, worker: Callable[..., subprocess.Popen[bytes]], seen_first: int
) -> None:
    """Its monitor ends it by the same signal as the launcher its peers."""
    workers, run, ledger = watched(tmp_path, "inprocess")
    ranks = [worker(0, rank, "1-a") for rank in (0, 1)]
    workers.look()
    for rank, waits in ((0, False), (1, True)):
        kind: Any = "interrupted" if waits else "hang"
        write_record(
            run, FaultRecord(kind, rank, 0, "inprocess", "1-a", "no progress for 8.1s", waits, "its stacks")
        )
    (tmp_path / "ended").mkdir()
    for rank in (seen_first, 1 - seen_first):
        ranks[rank].terminate()
        (tmp_path / "ended" / str(ranks[rank].pid)).write_text(str(ranks[rank].wait()))
        workers.look()
    ledger.close()
    record = read_records(run)[-1]
    assert (record.kind, record.rank, record.stacks) == ("hang", 0, "its stacks")
    (told,) = seen(run)
    assert isinstance(told, FaultSeen)
    assert told.reason == "rank 0 hung, and was stopped after step 0"


@pytest.mark.parametrize(
    ("layer", "first", "number"),
    [
        ("ft_launcher", 0, signal.SIGKILL),  # by the monitor of the peer, which is silent for as long
        ("ft_launcher", 1, signal.SIGKILL),
        ("inprocess", 1, signal.SIGTERM),
    ],
)
def test_a_frozen_rank_is_to_blame_whoever_is_killed_first_and_the_silence_counts_from_when_it_froze(
    tmp_path: Path,
    worker: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    layer: str,
    first: int,
    number: signal.Signals,
) -> None:
    """NVRx wakes a rank before it kills it."""
    monkeypatch.setattr("runner.launch.watch.watching._least_stop", lambda recipe: 0.3)
    workers, run, ledger = watched(tmp_path, layer)
    ranks = [worker(0, rank, "1-a") for rank in (0, 1)]
    workers.look()
    for _ in range(2):  # the first time it goes on in time
        ranks[1].send_signal(signal.SIGSTOP)
        until = time.monotonic() + 20
        while state_of(ranks[1].pid) != "T":
            assert time.monotonic() < until
        workers.look()
        ranks[1].send_signal(signal.SIGCONT)
        while state_of(ranks[1].pid) == "T":
            assert time.monotonic() < until
        workers.look()
    ranks[1].send_signal(signal.SIGSTOP)
    while state_of(ranks[1].pid) != "T":
        assert time.monotonic() < until
    froze = time.time()
    while time.time() < froze + 0.5:
        workers.look()
        time.sleep(0.02)
    ranks[1].send_signal(signal.SIGCONT)
    while state_of(ranks[1].pid) == "T":
        assert time.monotonic() < until
    workers.look()
    ranks[first].send_signal(number)
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / str(ranks[first].pid)).write_text(str(ranks[first].wait()))
    workers.look()
    ledger.close()
    (record,) = read_records(run)
    assert (record.kind, record.rank) == ("hang", 1)
    (told,) = seen(run)
    assert isinstance(told, FaultSeen)
    assert told.reason == "rank 1 was frozen (SIGSTOP), and was killed after step 0" == str(record)
    (when,) = [r.stamp.t for r in read_run(run).records if isinstance(r.event, FaultSeen)]
    assert abs(when - told.lasted - froze) < 0.3 and told.lasted > 0.4


@pytest.mark.parametrize(("code", "told"), [(ExitCode.CRASHED, True), (ExitCode.SAVE_FAILED, False)])
def test_a_start_that_finds_nothing_left_to_do_is_not_told_as_a_restart(
    tmp_path: Path,
    worker: Callable[..., subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
    code: ExitCode,
    told: bool,
) -> None:
    workers, run, ledger = watched(tmp_path, "ft_launcher")
    write_outcome(run, Outcome(int(code), "rank 1: it failed", rank=1, step=3, attempt="1-a"))
    worker(1, 0, "2-b")
    workers.look()
    ledger.close()
    assert ("nvrx-run: rank 1: it failed; restart 1 of 20 of the workers" in capsys.readouterr().err) == told
