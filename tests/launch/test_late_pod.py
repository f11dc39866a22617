"""A pod that comes too late: to a rendezvous that is over, or to a run that is finished."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.checkpoint.record import CommitRecord, write_record
from runner.errors import ExitCode
from runner.ledger.events import LaunchStarted
from runner.ledger.writer import LedgerWriter

CLUSTER = {"accelerator": "cpu", "nodes": 2, "processes_per_node": 1}
POD = {"NVRX_RUN_LEADER": "127.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture
def leader() -> Iterator[int]:
    """A port on which something listens, as the launcher of a leader that is on its way out."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def launcher(folder: Path, text: str) -> None:
    """Replace torchrun by a script; `$CALLS` is a file for it to count in."""
    path = folder / "bin" / "torchrun"
    path.unlink()
    path.write_text(f"#!/bin/sh\nCALLS={folder}/calls\n{text}\n")
    path.chmod(0o755)


def test_follower_looks_for_the_next_leader_when_the_rendezvous_is_over(supervised, tmp_path, leader) -> None:
    launcher(
        tmp_path,
        'echo x >> "$CALLS"\n[ $(wc -l < "$CALLS") -ge 3 ] && { echo MemoryError >&2; exit 1; }\n'
        "echo torch.distributed.elastic.rendezvous.api.RendezvousClosedError >&2\nexit 1",
    )
    run = supervised("none", cluster=CLUSTER | {"rendezvous_port": leader}, env=POD)
    code, _, err = run.wait()
    assert code == ExitCode.CRASHED
    assert err.count("the leader's rendezvous is over; waiting for its next one") == 2
    assert "the launcher failed before any worker started: MemoryError" in err
    assert len((tmp_path / "calls").read_text().split()) == 3


def test_any_other_failure_of_the_launcher_ends_the_pod(supervised, tmp_path, leader) -> None:
    launcher(tmp_path, 'echo x >> "$CALLS"\necho MemoryError >&2\nexit 1')
    run = supervised("none", cluster=CLUSTER | {"rendezvous_port": leader}, env=POD)
    code, _, err = run.wait()
    assert code == ExitCode.CRASHED
    assert "the launcher failed before any worker started: MemoryError" in err
    assert len((tmp_path / "calls").read_text().split()) == 1


def test_follower_whose_run_is_finished_meanwhile_waits_for_nobody(supervised, tmp_path, free_port) -> None:
    run = supervised("none", cluster=CLUSTER | {"rendezvous_port": free_port}, env=POD, steps=7)
    run.until(lambda: (run.run / ".lock-node1").exists())
    time.sleep(1)
    assert run.process.poll() is None
    ledger = LedgerWriter(run.run, rank=-1, life="of the others")
    ledger.record(LaunchStarted((), "none", {}))
    ledger.close()
    write_record(run.run / "checkpoints" / "step-7", CommitRecord(7, 2, "", 0.0, "sync", {}, [], {}))
    (run.run / "finished.json").write_text(json.dumps({"steps": 7}))
    code, _, err = run.wait()
    assert code == ExitCode.DONE, err
    assert "finished already" in err
