"""What only GPUs can show of recovery: `pytest -m gpu tests/e2e` (two GPUs, NCCL; about three minutes)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from product import TINY, Run, changed, make_run, same

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
    assert run.losses() == without_faults.losses()
    assert same(run.state(), without_faults.state())
