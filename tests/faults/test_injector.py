"""Each type of fault does what it says, once, and is on record before it strikes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from runner.faults.injector import FaultingLedger, InjectedFault, ScheduledFaults
from runner.ledger.events import FaultFired, Loaded, SaveStarted
from runner.ledger.reader import read_run
from runner.ledger.writer import LedgerWriter
from runner.recipe.fault_schedule import PlannedFault

PROGRAM = """
import sys
from datetime import timedelta
from pathlib import Path
from runner.faults.injector import ScheduledFaults
from runner.ledger.writer import LedgerWriter
from runner.recipe.fault_schedule import PlannedFault
folder = Path(sys.argv[1])
faults = ScheduledFaults(
    [PlannedFault(3, 7, 1, sys.argv[2])], folder, LedgerWriter(folder, rank=1, life="a"),
    timedelta(seconds=float(sys.argv[3])) if len(sys.argv) > 3 else None,
)
faults.during_step(6, 1)
faults.during_step(7, 0)
print("before", flush=True)
faults.during_step(7, 1)
print("after", flush=True)
"""


def start(folder: Path, kind: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), kind, *more], stdout=subprocess.PIPE, text=True
    )


def fired(folder: Path) -> list[int]:
    return sorted(json.loads(path.read_text())["index"] for path in (folder / "faults/fired").glob("0*.json"))


@pytest.mark.parametrize(
    ("kind", "status"),
    [("sigkill", -signal.SIGKILL), ("oom_kill", -signal.SIGKILL), ("exit_0", 0), ("exit_1", 1)],
)
def test_process_ends(tmp_path, kind, status):
    first = start(tmp_path, kind)
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, out) == (status, "before\n")
    assert fired(tmp_path) == [3]
    assert [record.event for record in read_run(tmp_path).records] == [FaultFired(3, 7, kind)]
    again = start(tmp_path, kind)
    out, _ = again.communicate(timeout=60)
    assert (again.returncode, out) == (0, "before\nafter\n"), "it fires once in the life of a run"


@pytest.mark.parametrize("kind", ["hang", "native_hang"])
def test_hang_lasts_as_long_as_asked(tmp_path, kind):
    process = start(tmp_path, kind, "0.7")
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    began = time.monotonic()
    assert process.stdout.readline() == "after\n"
    assert 0.5 < time.monotonic() - began < 5
    process.communicate(timeout=60)


def test_sigstop_freezes_the_process(tmp_path):
    process = start(tmp_path, "sigstop")
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    assert process.stdout.readline() == "after\n"
    process.communicate(timeout=60)


def test_exception_and_nan_loss(tmp_path):
    ledger = LedgerWriter(tmp_path, rank=0, life="a")
    faults = ScheduledFaults(
        [PlannedFault(0, 1, 0, "exception"), PlannedFault(1, 2, 0, "nan_loss")], tmp_path, ledger
    )
    with pytest.raises(InjectedFault, match="injected fault 0: exception in step 1"):
        faults.during_step(1, 0)
    faults.during_step(1, 0)
    weight = torch.ones(3, requires_grad=True)
    loss = faults.loss(2, 0, weight.sum())
    loss.backward()
    assert torch.isnan(loss)
    assert weight.grad is not None
    assert torch.isnan(weight.grad).all()
    assert faults.loss(2, 0, torch.tensor(1.0)) == 1.0
    faults.during_step(2, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a real CUDA error would spoil this process")
def test_cuda_error_is_torchs_own_exception_where_there_is_no_gpu(tmp_path):
    faults = ScheduledFaults(
        [PlannedFault(0, 1, 0, "cuda_error")], tmp_path, LedgerWriter(tmp_path, rank=0, life="a")
    )
    with pytest.raises(torch.AcceleratorError, match="imitated: there is no GPU"):
        faults.during_step(1, 0)


def test_there_is_nothing_to_restore_in_the_first_life(tmp_path):
    ledger = FaultingLedger(LedgerWriter(tmp_path, rank=-1, life=""))
    ledger.begin_life("a", rank=0)
    ledger.faults = ScheduledFaults([PlannedFault(0, 1, 0, "exception", "restore")], tmp_path, ledger)
    ledger.record(Loaded(0, "fresh", 0.0))
    with pytest.raises(InjectedFault):
        ledger.record(Loaded(4, "memory", 0.0))


def test_fault_in_a_save_strikes_after_the_save_is_on_record(tmp_path):
    ledger = FaultingLedger(LedgerWriter(tmp_path, rank=-1, life=""))
    ledger.begin_life("a", rank=0)
    ledger.faults = ScheduledFaults([PlannedFault(0, 5, 0, "exception", "save")], tmp_path, ledger)
    ledger.record(SaveStarted(4, "sync", 0.0))
    with pytest.raises(InjectedFault):
        ledger.record(SaveStarted(5, "sync", 0.0))
    kinds = [type(record.event).__name__ for record in read_run(tmp_path).records]
    assert kinds == ["SaveStarted", "SaveStarted", "FaultFired"]


def test_fault_that_cannot_be_recorded_does_not_fire(tmp_path):
    faults = ScheduledFaults(
        [PlannedFault(0, 1, 0, "sigkill")], tmp_path, LedgerWriter(tmp_path, rank=0, life="a")
    )
    (tmp_path / "faults").write_text("in the way")
    with pytest.raises(OSError):
        faults.during_step(1, 0)
