"""What only GPUs can show of recovery: `pytest -m gpu tests/e2e` (two GPUs, NCCL; about five minutes)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from product import TINY, Run, changed, make_run, same

from runner.recovery.nvrx import cupti_manager

pytestmark = pytest.mark.gpu

ON_GPUS = changed(TINY, {"cluster.accelerator": "cuda", "checkpoint.snapshot_every": 1})
SOFT = {"soft_timeout": "3s", "hard_timeout": "10s", "barrier_timeout": "60s"}


@pytest.fixture(scope="module")
def without_faults(tmp_path_factory: pytest.TempPathFactory) -> Run:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run = make_run(tmp_path_factory.mktemp("gpus") / "without", base=ON_GPUS)
    run.finish()
    return run


def with_fault(folder: Path, fault: str, rank: int, recovery: dict[str, Any]) -> Run:
    changes = {"faults.at": [{"step": 7, "rank": rank, "type": fault}], "recovery": recovery}
    run = make_run(folder, changes, base=ON_GPUS)
    run.finish()
    assert [event["rank"] for event in run.events("FaultFired")] == [rank]
    return run


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layer", ["ft_launcher", "ft_launcher+inprocess"])
def test_a_lost_cuda_context_is_mended_by_a_new_process(
    tmp_path: Path, without_faults: Run, layer: str, rank: int
) -> None:
    """A device-side assertion fails: nothing that this process does on its GPU works from then on."""
    run = with_fault(tmp_path, "cuda_error", rank, {"layer": layer})
    losses = run.losses()
    # A loss is read a step late. Where the next life goes on after step 6, rank 0 never comes to say what that was.
    assert {**without_faults.losses(), **losses} == without_faults.losses()
    assert losses.keys() >= without_faults.losses().keys() - {6}
    assert same(run.state(), without_faults.state())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stops_taking_part_while_the_other_runs_ahead(
    tmp_path: Path, without_faults: Run, rank: int
) -> None:
    """The other's update and snapshot are queued behind a collective that is aborted; neither may count."""
    run = with_fault(tmp_path, "hang", rank, {"layer": "inprocess", "inprocess": SOFT})
    assert {event["source"] for event in run.events("Loaded")} >= {"memory"}
    # The step before it was over, though the rank that hung looked only afterwards: the hang is no part of it.
    assert max(event["seconds"] for event in run.events("StepEnded") if event["step"] == 6) < 3
    assert run.losses() == without_faults.losses()
    assert same(run.state(), without_faults.state())


def test_a_slow_host_is_named(tmp_path: Path, without_faults: Run) -> None:
    pauses = [{"step": step, "rank": 1, "type": "hang"} for step in range(1, 13)]
    changes = {"recovery.stragglers": {"every": 3}, "faults": {"at": pauses, "hang_duration": "300ms"}}
    run = make_run(tmp_path, changes, base=ON_GPUS)
    summary = run.finish().stdout.partition("Slow ranks")[2].partition("Where the wall time went")[0]
    assert re.search(r"rank 1 +host", summary), summary
    assert "rank 0" not in summary
    assert same(run.state(), without_faults.state())


_BUSY = """
import sys, torch
a = torch.randn(8192, 8192, device="cuda:1", dtype=torch.bfloat16)
print("busy", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


def test_a_slow_gpu_is_named(tmp_path: Path) -> None:
    """Another process uses the same GPU, which slows this run's kernels there."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    try:
        cupti_manager()
    except ImportError as error:
        pytest.skip(f"the NVRx in use has no access to CUPTI here: {error}")
    changes = {  # steps that a GPU is busy with
        "model.architecture.hidden_size": 2048,
        "model.architecture.intermediate_size": 8192,
        "model.architecture.num_attention_heads": 16,
        "model.architecture.max_position_embeddings": 256,
        "dataset.sequence_length": 256,
        "training.steps": 60,
        "training.global_batch_size": 16,
        "training.micro_batch_size": 8,
        "checkpoint.every": 60,
        "recovery.stragglers": {"every": 5},
    }
    with subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "busy\n"
        try:
            done = make_run(tmp_path, changes, base=ON_GPUS).finish()
        finally:
            other.kill()
    summary = done.stdout.partition("Slow ranks")[2].partition("Where the wall time went")[0]
    assert re.search(r"rank 1 +GPU", summary), done.stdout
    assert not re.search(r"rank 0 +GPU", summary)
