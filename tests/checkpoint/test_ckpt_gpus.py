"""On two GPUs: snapshots beside training, and the trap of work that is queued behind an aborted collective."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ckpt_world import Rank, Recorder, TestLife, World, named, section

from runner.checkpoint.manager import Manager
from runner.checkpoint.shm import remove_leftovers
from runner.train.ports import TrainState

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
ELEMENTS = 1 << 24


class GpuLife(TestLife):
    """A life over NCCL, with a second group for collectives that never meet."""

    __test__ = False

    def join(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl", store=self._group_store, rank=self.rank, world_size=self.world_size,
            timeout=timedelta(seconds=120), device_id=device,
        )  # fmt: skip
        self.other = dist.new_group(backend="nccl")
        dist.all_reduce(
            torch.ones(1, device=device), group=self.other
        )  # connect now: later the host would block
        torch.cuda.synchronize()

    def abort(self) -> None:
        """Hooks first, then the abort, as a recovery layer does it."""
        for hook in self._hooks:
            hook()
        dist.distributed_c10d._abort_process_group()


class Job:
    """Two tensors and a collective a step; `seen` changes in forward."""

    def __init__(self, place: Rank, life: GpuLife, device: torch.device) -> None:
        self.rank, self.life, self.device = place.rank, life, device
        self.weight = torch.zeros(ELEMENTS, device=device)
        self.seen = torch.zeros(ELEMENTS, device=device)
        self.state = TrainState(
            {"model.weight": self.weight, "model.seen": self.seen}, frozenset({"model.seen"})
        )

    def step(self, checkpointer: Manager, group: Any = None) -> None:
        checkpointer.before_forward()
        self.seen.add_(1.0)
        gradient = torch.full_like(self.weight, float((self.rank + 1) * (self.state.step + 1)))
        dist.all_reduce(gradient, group=group)
        checkpointer.before_update()
        self.weight.sub_(gradient)
        self.state.step += 1
        checkpointer.after_update()

    def values(self) -> tuple[float, float]:
        """Both tensors hold one value all over, or something is broken."""
        low, high = torch.stack([self.weight, self.seen]).aminmax(dim=1)
        assert torch.equal(low, high)
        return low[0].item(), low[1].item()


def expected(step: int) -> tuple[float, float]:
    return -3.0 * step * (step + 1) / 2, float(step)


def run_ahead(place: Rank, folder: str, run_id: str, freeze: bool) -> dict[str, Any]:
    """In step 4 each rank waits in a collective that the other never joins; update and snapshot queue behind it."""
    device = torch.device("cuda", place.rank)
    lives = [GpuLife(place.store, place.rank, 2, f"{run_id}.{freeze}.{n}", n > 0) for n in range(2)]
    checkpointer = Manager(
        section(mode="async", every=100, snapshot_every=1),
        Path(folder),
        named(run_id),
        Recorder(),
        Recorder(),
        device,
    )
    lives[0].join(device)
    job = Job(place, lives[0], device)
    checkpointer.attach(lives[0], job.state)
    assert checkpointer.restore() == (0, "fresh")
    for _ in range(3):
        job.step(checkpointer)
    torch.cuda.synchronize()
    job.step(checkpointer, group=None if place.rank == 0 else lives[0].other)
    time.sleep(1.0)
    staging = checkpointer._staging
    assert staging is not None and staging.pending is not None
    stuck = not staging.pending.copied.query()
    if not freeze:
        staging.freeze = lambda: None  # type: ignore[method-assign]
    lives[0].abort()
    time.sleep(2.0)
    completed = staging.pending is None or staging.pending.copied.query()
    checkpointer._settle(0.0)
    steps = staging.steps()
    lives[1].join(device)
    job = Job(place, lives[1], device)
    checkpointer.attach(lives[1], job.state)
    came_from = checkpointer.restore()
    restored = job.values()
    while job.state.step < 6:
        job.step(checkpointer)
    last = job.values()
    checkpointer.close()
    remove_leftovers(named(run_id))
    return {
        "stuck": stuck, "completed": completed, "steps": steps, "from": came_from, "restored": restored, "last": last,
    }  # fmt: skip


def test_work_queued_behind_an_aborted_collective_is_never_restored(tmp_path: Path) -> None:
    with World(2) as world:
        results = world.run(run_ahead, folder=str(tmp_path), run_id="ahead", freeze=True, timeout=180)
    for result in results:
        assert (
            result["stuck"] and result["completed"]
        )  # the trap was there: the copy completed after the abort
        assert result["from"] == (3, "memory")
        assert result["restored"] == expected(3) and result["last"] == expected(6)


def test_without_the_freeze_the_trap_snaps(tmp_path: Path) -> None:
    with World(2) as world:
        results = world.run(run_ahead, folder=str(tmp_path), run_id="ahead2", freeze=False, timeout=180)
    assert any(result["last"] != expected(6) or 4 in result["steps"] for result in results)
