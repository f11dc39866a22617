"""The rank that hangs is blamed, not the one that noticed."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from tinylab import expected

from runner.checkpoint.exchange import Exchange
from runner.control.outcome import TIMED_OUT
from runner.errors import BusyError, ExitCode, PeerMissingError, RunError
from runner.faults.records import read_records
from runner.faults.schedule import post_mortem
from runner.recovery.ending import Coroner, lost_a_peer
from runner.train.data.watch import DataWorkerError


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_python_hang_is_interrupted_in_place_and_blamed_on_the_rank_that_hangs(tiny, rank):
    run = tiny("inprocess", f"4:{rank}:hang")
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 2
    records = read_records(run.folder / "run")
    assert [record.rank for record in records if record.kind == "hang"] == [rank]
    assert all(record.consequence for record in records if record.rank != rank)
    # Its peer was waiting for it when NVRx looked, or had just been told by its broken connection.
    peers = [record for record in records if record.rank != rank]
    assert all(r.kind == "exception" or "waiting for its peers" in r.what for r in peers) and peers
    (hang,) = [record for record in records if record.kind == "hang"]
    assert "in fire" in hang.phase
    assert hang.step == 3
    assert "MonitorThread" in hang.stacks


@pytest.mark.slow
def test_silent_rank_leaves_its_stacks_before_ft_launcher_kills_it(tiny):
    run = tiny("ft_launcher", "4:1:native_hang")
    assert run.wait() == 0, run.log.read_text()
    (stacks,) = [
        path for path in (run.folder / "run/faults").glob("silent-rank00001-*") if path.stat().st_size
    ]
    assert "in fire" in stacks.read_text()


def test_an_agreement_that_a_rank_does_not_come_to_is_that_ranks_fault():
    store = dist.HashStore()
    life = SimpleNamespace(rank=0, world_size=2, store=dist.PrefixStore("life", store))
    exchange = Exchange(life, beat=lambda: None)
    with pytest.raises(PeerMissingError, match="for the layout of rank 1 in vain") as caught:
        exchange.wait("layout/1", timedelta(seconds=0.05), "the layout of rank 1")
    assert lost_a_peer(caught.value)
    assert TIMED_OUT.search(str(caught.value)), "the supervisor reads the same out of what the worker left"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:35001"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes. Connection was likely closed"), True),
        (dist.DistBackendError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"), True),
        (DataWorkerError("a data worker of this rank is gone: ConnectionResetError(104, 'Connection reset by peer')"),
         False),
        (BrokenPipeError(32, "Broken pipe"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)  # fmt: skip
def test_only_a_connection_to_another_rank_makes_a_fault_that_ranks(error: Exception, lost: bool) -> None:
    """A data worker that is killed may reset the connection on which its rank reads."""
    assert lost_a_peer(error) == lost


def test_a_save_that_ends_the_run_is_on_record_once_for_all_ranks(tmp_path):
    error = RunError("the save of step 8 to /c failed: rank 1: No space left on device", ExitCode.SAVE_FAILED)
    for rank in (0, 1):
        coroner = Coroner(tmp_path, "none", frozenset())
        ending = coroner.exception(SimpleNamespace(rank=rank, step=8, attempt="1-a", over=False), error)
        coroner.close()
        assert (ending.exit_code, ending.message) == (ExitCode.SAVE_FAILED, str(error))
    (record,) = read_records(tmp_path)
    assert (record.rank, record.what, record.consequence) == (0, str(error), False)
    assert "faults that happened (1)" in post_mortem(tmp_path) and str(error) in post_mortem(tmp_path)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RunError("no"), ExitCode.NO_PROGRESS), (BusyError("the hub answers 429"), ExitCode.CRASHED)],
)
def test_what_is_busy_twice_is_no_want_of_progress(tmp_path, error, code):
    coroner = Coroner(tmp_path, "inprocess", frozenset())
    lives = [SimpleNamespace(rank=0, step=0, attempt=f"1-{n}", over=False) for n in (0, 1)]
    endings = [coroner.exception(life, error) for life in lives]
    coroner.close()
    assert [ending.exit_code for ending in endings] == [ExitCode.CRASHED, code]
    assert len(read_records(tmp_path)) == 2
