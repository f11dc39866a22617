"""The trap of work that is queued behind an aborted collective; on two GPUs: `pytest -m gpu`.

In step 4 each rank waits in a collective that its peer never joins; the update and the snapshot copy are queued behind
it. The abort lets the queue run, on a gradient that was never reduced. The run must go on from the snapshot of step 3,
and its losses must be an undisturbed run's; without the freeze that runs ahead of the abort they must not.

The case is the same on two CPU ranks, where the queue is a thread and the abort shuts gloo's sockets down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ckpt_world import Rank, Recorder, Unanswered, World, named, section
from queued_machines import Machine, QueuedLife, machine

from runner.checkpoint.manager import Manager
from runner.checkpoint.shm import remove_leftovers
from runner.train.ports import TrainState

ELEMENTS = 1 << 20
LAST = 6
PATIENCE = 80  # seconds; a rank that has not answered by then is killed


class Job:
    """Two tensors and a collective a step; `seen` changes in forward, `weight` in the update."""

    def __init__(self, rank: int, where: Machine) -> None:
        self.rank, self.where = rank, where
        self.weight = torch.zeros(ELEMENTS, device=where.device)
        self.seen = torch.zeros(ELEMENTS, device=where.device)
        self.state = TrainState(
            {"model.weight": self.weight, "model.seen": self.seen}, frozenset({"model.seen"})
        )

    def step(self, checkpointer: Manager, group: Any = None) -> None:
        where, step = self.where, self.state.step
        checkpointer.before_forward()
        where.queue(lambda: self.seen.add_(1.0))
        gradient = torch.full_like(self.weight, float((self.rank + 1) * (step + 1)))
        where.reduce(gradient, group)
        checkpointer.before_update()
        where.queue(lambda: self.weight.sub_(gradient))
        self.state.step += 1
        checkpointer.after_update()

    def values(self) -> tuple[float, float]:
        """Both tensors hold one value all over, or something is broken."""
        self.where.synchronize()
        low, high = torch.stack([self.weight, self.seen]).aminmax(dim=1)
        assert torch.equal(low, high)
        return low[0].item(), low[1].item()


def undisturbed(step: int) -> tuple[float, float]:
    """Both tensors' value after `step`: the summed gradient of step n is 3 n."""
    return -3.0 * step * (step + 1) / 2, float(step)


def run_ahead(place: Rank, kind: str, folder: str, run_id: str, freeze: bool) -> dict[str, Any]:
    """Three steps, the stuck one, the abort, and a second life to step 6."""
    where = machine(kind, place.rank)
    recorder = Recorder()
    checkpointer = Manager(
        section(mode="async", every=100, snapshot_every=1), Path(folder), named(run_id), recorder, recorder,
        where.device, successors=False,
    )  # fmt: skip

    def begin(number: int) -> tuple[QueuedLife, Job, tuple[int, str]]:
        life = where.life(place.store, place.rank, f"{run_id}.{number}", number > 0)
        life.join(where.device)
        job = Job(place.rank, where)
        checkpointer.attach(life, job.state)
        return life, job, checkpointer.restore()

    life, job, _ = begin(0)
    for _ in range(3):
        job.step(checkpointer)
    where.synchronize()
    job.step(checkpointer, group=None if place.rank == 0 else life.other)
    time.sleep(
        0.5
    )  # the trap is that the copy is still queued; were the machine slow, it would be all the more
    staging = checkpointer._staging
    pending = staging.buffers.pending
    assert pending is not None and pending.copied is not None
    stuck = not pending.copied.query()
    if not freeze:
        staging.freeze = lambda: None  # type: ignore[method-assign]
    life.abort()
    where.synchronize()  # what was queued has run
    if dist.is_initialized():  # gloo's groups outlive the cut
        dist.destroy_process_group()
    completed = pending.copied.query()
    checkpointer._settle(0.0)
    _, job, came_from = begin(1)
    values = {job.state.step: job.values()}
    while job.state.step < LAST:
        job.step(checkpointer)
        values[job.state.step] = job.values()
    checkpointer.close()
    remove_leftovers(named(run_id))
    return {"stuck": stuck, "completed": completed, "from": came_from, "values": values}


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return request.param


@pytest.fixture
def two() -> Iterator[World]:
    with World(2) as world:  # kills, on leaving, what does not end by itself
        yield world


def test_work_queued_behind_an_aborted_collective_is_never_restored(
    two: World, tmp_path: Path, kind: str
) -> None:
    results = two.run(
        run_ahead, kind=kind, folder=str(tmp_path), run_id=f"ahead-{kind}", freeze=True, timeout=PATIENCE
    )
    for result in results:
        assert result["stuck"] and result["completed"]  # the trap was there: the copy ended after the abort
        assert result["from"] == (3, "memory")
        assert result["values"] == {step: undisturbed(step) for step in range(3, LAST + 1)}


def test_without_the_freeze_the_trap_snaps(two: World, tmp_path: Path, kind: str) -> None:
    arguments: dict[str, Any] = {"kind": kind, "folder": str(tmp_path), "run_id": f"snap-{kind}"}
    try:
        results = two.run(run_ahead, freeze=False, timeout=PATIENCE, **arguments)
    except Unanswered:
        remove_leftovers(named(arguments["run_id"]))
        return  # a run that does not go on is a failure too
    for result in results:
        assert result["from"] == (4, "memory")
        assert result["values"][LAST] != undisturbed(LAST)
