"""A pod takes the place of one that was lost: the run folder's lock is waited for, and a stop ends the wait."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from recipes_for_tests import tiny

from runner.errors import ExitCode, InputError, RunError
from runner.launch.place import find_place, own_rank
from runner.launch.run_folder import RunFolder
from runner.ledger.events import LaunchEnded
from runner.ledger.reader import read_run
from runner.ledger.sinks.live import _identity
from runner.ledger.writer import LedgerWriter
from runner.system.durable import write_durably


def test_lock_of_a_lost_node_is_waited_for(tmp_path: Path) -> None:
    recipe = tiny(output={"folder": str(tmp_path)})
    lost = RunFolder(recipe, 1)
    with pytest.raises(RunError, match="in use by another") as refused:
        RunFolder(recipe, 1)
    assert refused.value.exit_code == ExitCode.BAD_RECIPE  # on one machine: somebody typed the command twice
    with pytest.raises(RunError, match="in use by another") as held:
        RunFolder(recipe, 1, patience=0.6)
    assert held.value.exit_code == ExitCode.CRASHED  # in a pod: the next one may find it free
    timer = threading.Timer(1.0, lost.close)
    timer.start()
    RunFolder(recipe, 1, patience=20).close()
    timer.join()


def test_pod_that_is_asked_to_leave_while_it_waits_for_the_leader_ends_as_preempted(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("NVRX_RUN_LEADER", "127.0.0.1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    recipe = tiny(cluster={"nodes": 2, "rendezvous_port": free_port})
    assert own_rank() == 1
    with pytest.raises(RunError, match="asked to stop") as stopped:
        find_place(recipe, say=lambda line: None, stop_requested=lambda: True)
    assert stopped.value.exit_code == ExitCode.PREEMPTED


@pytest.mark.parametrize(
    ("rank", "says"),
    [
        ("x", "NODE_RANK is 'x'; set it to 0 on the first"),
        ("-1", "is '-1'"),
        ("2", "NODE_RANK is 2, and cluster.nodes is 2"),
    ],
)
def test_a_node_rank_that_is_none_is_named(rank: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", rank)
    recipe = tiny(cluster={"nodes": 2, "leader": "127.0.0.1"})
    with pytest.raises(InputError, match=says):
        find_place(recipe, say=lambda line: None, stop_requested=lambda: False)


def test_pods_whose_processes_have_the_same_number_write_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod counts its processes from 1, and all write to the run's folder."""
    monkeypatch.setattr("os.getpid", lambda: 2)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(100):
                write_durably(tmp_path / "run.json", "{}")
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_launchers_of_pods_that_start_together_have_a_ledger_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pods, the same millisecond, the same process id."""
    monkeypatch.setattr("os.getpid", lambda: 2)
    monkeypatch.setattr("time.time_ns", lambda: 1_764_471_621_123_000_000)
    writers = []
    for host in ("tiny-1a-0", "tiny-1a-1"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        writers.append(LedgerWriter(tmp_path, rank=-1, life=f"launch-{host}"))
    for code, writer in enumerate(writers):
        writer.record(LaunchEnded(code))
        writer.close()
    names = [path.name for path in sorted((tmp_path / "ledger").iterdir())]
    assert names == [f"launcher-1764471621123-tiny-1a-{index}-2.000.jsonl" for index in (0, 1)]
    assert {record.event for record in read_run(tmp_path).records} == {LaunchEnded(0), LaunchEnded(1)}


def test_pods_that_report_live_agree_on_the_runs_identity(tmp_path: Path) -> None:
    together, found = threading.Barrier(8), list[str]()

    def ask() -> None:
        together.wait(20)
        found.append(_identity(tmp_path))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0]
    assert [path.name for path in tmp_path.iterdir()] == ["live-id"]
