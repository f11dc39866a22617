"""Snapshots in memory: restarts in the same process, respawned processes, and what must never be restored."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ckpt_world import Rank, Recorder, Trainer, World, arenas, digest, manager, named, train, writer_pid
from torch.distributed.tensor import DTensor

from runner.checkpoint import preparation, writing
from runner.checkpoint.layout import local_tensor
from runner.checkpoint.shm import SHARED_MEMORY, remove_leftovers
from runner.checkpoint.staging import Staging
from runner.checkpoint.writer import write_synchronously
from runner.ledger.events import SaveCommitted


@pytest.fixture(scope="module")
def undisturbed(two: World, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return two.run(train, folder=str(folder), run_id="undisturbed", until=8, mode="sync")[0]["digests"]


class NotYet:
    """Stands in for a CUDA event, which a machine without a GPU cannot make."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def begin(
    place: Rank,
    folder: str,
    run_id: str,
    *,
    in_process: bool = False,
    checkpointer: Any = None,
    **settings: Any,
):
    life = place.life(in_process=in_process)
    trainer = Trainer(life, model_seed=99 if in_process else 7)
    recorder = Recorder()
    checkpointer = checkpointer or manager(folder, recorder, run_id, **settings)
    checkpointer.attach(life, trainer.state)
    return life, trainer, checkpointer, checkpointer.restore()


def bytes_of_tensors() -> int:
    """Memory of all tensors that Python's garbage collector knows."""
    gc.collect()
    found = {}
    for tensor in gc.get_objects():
        if type(tensor) in (torch.Tensor, torch.nn.Parameter, DTensor) and not tensor.is_meta:
            storage = local_tensor(tensor).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def restart_in_process(place: Rank, folder: str, run_id: str, restarts: int = 1) -> dict[str, Any]:
    """A soft fault in the middle of step 6, several times."""
    settings = {"mode": "sync", "snapshot_every": 1}
    life, trainer, checkpointer, came_from = begin(place, folder, run_id, **settings)
    sources, sizes, held = [], [], []
    for _ in range(restarts):
        while trainer.state.step < 5:
            trainer.step(checkpointer)
        checkpointer.before_forward()
        trainer.forward_backward()
        life.abort()
        life, trainer, checkpointer, came_from = begin(
            place, folder, run_id, in_process=True, checkpointer=checkpointer
        )
        sources.append(came_from)
        restored = digest(trainer.full_state())
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        if len(sizes) % 6 == 2:
            held.append(bytes_of_tensors())
    while trainer.state.step < 8:
        trainer.step(checkpointer)
    last = digest(trainer.full_state())
    checkpointer.finish()
    checkpointer.close()
    return {"sources": sources, "restored": restored, "last": last, "sizes": sizes, "held": held}


def test_a_soft_fault_costs_one_step_and_no_storage(
    two: World, tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    for result in two.run(restart_in_process, folder=str(tmp_path), run_id="soft"):
        assert result["sources"] == [(5, "memory")]
        assert result["restored"] == undisturbed[5]
        assert result["last"] == undisturbed[8]
    assert [path.name for path in tmp_path.iterdir()] == ["step-8"]


def test_twenty_restarts_leave_memory_flat(two: World, tmp_path: Path, undisturbed: dict[int, str]) -> None:
    for result in two.run(restart_in_process, folder=str(tmp_path), run_id="twenty", restarts=20):
        assert result["last"] == undisturbed[8]
        assert result["sizes"][-1] - result["sizes"][4] < 4096, result["sizes"]  # KiB
        early, late = result["held"][:2], result["held"][2:]
        assert len(late) == 2 and min(late) <= max(early), "each life has let go of the one before"
    assert arenas("twenty") == []


def queued_behind_an_abort(place: Rank, folder: str, run_id: str, freeze: bool) -> tuple[int, str]:
    """The copy of step 3 is still queued when a fault ends the life, and completes afterwards."""
    life, trainer, checkpointer, _ = begin(place, folder, run_id, mode="sync", snapshot_every=1)
    checkpointer._staging.immediate = False  # as on a GPU: the copy runs on beside the next step
    for _ in range(3):
        trainer.step(checkpointer)
    pending = checkpointer._staging.buffers.pending
    assert pending.step == 3
    pending.copied = event = NotYet()
    if freeze:
        checkpointer.freeze()
    event.done = True  # the abort lets queued work run, whatever it computes
    checkpointer.freeze()
    checkpointer._settle(0.0)
    life.abort()
    *_, checkpointer, came_from = begin(place, folder, run_id, in_process=True, checkpointer=checkpointer)
    checkpointer.close()
    remove_leftovers(named(run_id))
    return came_from


def test_a_copy_that_completes_after_the_freeze_never_counts(two: World, tmp_path: Path) -> None:
    assert (
        two.run(queued_behind_an_abort, folder=str(tmp_path), run_id="queued", freeze=True)
        == [(2, "memory")] * 2
    )
    # Taking the freeze away must change the answer, or the case above shows nothing.
    assert (
        two.run(queued_behind_an_abort, folder=str(tmp_path), run_id="queued", freeze=False)
        == [(3, "memory")] * 2
    )


def rejected(place: Rank, folder: str, run_id: str) -> tuple[int, str]:
    life, trainer, checkpointer, _ = begin(place, folder, run_id, mode="sync", snapshot_every=1)
    for _ in range(3):
        trainer.step(checkpointer)
    checkpointer.reject()
    life.abort()
    *_, checkpointer, came_from = begin(place, folder, run_id, in_process=True, checkpointer=checkpointer)
    checkpointer.close()
    remove_leftovers(named(run_id))
    return came_from


def test_the_snapshot_of_a_rejected_update_never_counts(two: World, tmp_path: Path) -> None:
    assert two.run(rejected, folder=str(tmp_path), run_id="rejected") == [(2, "memory")] * 2


def abandoned(place: Rank, folder: str, run_id: str) -> dict[str, Any]:
    """A fault one step after an asynchronous save began, twice, with the writer held."""
    settings = {"mode": "async", "every": 2, "snapshot_every": 1}
    life, trainer, checkpointer, _ = begin(place, folder, run_id, **settings)
    sources = []
    for _ in range(2):
        target = trainer.state.step + (2 if trainer.state.step % 2 else 3)
        writer = writer_pid()
        os.kill(writer, signal.SIGSTOP)
        while trainer.state.step < target:
            trainer.step(checkpointer)
        job = checkpointer._saves._job
        assert job is not None
        life.abort()
        os.kill(writer, signal.SIGCONT)
        job.join(30)  # before a new life could end it
        life, trainer, checkpointer, came_from = begin(
            place, folder, run_id, in_process=True, checkpointer=checkpointer
        )
        sources.append(came_from)
    restored = digest(trainer.full_state())
    while trainer.state.step < 8:
        trainer.step(checkpointer)
    last = digest(trainer.full_state())
    checkpointer.finish()
    checkpointer.close()
    return {"sources": sources, "restored": restored, "last": last}


def test_an_abandoned_save_never_commits_and_the_writer_lives_on(
    two: World, tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    for result in two.run(abandoned, folder=str(tmp_path), run_id="abandoned", timeout=90):
        (first, how), (second, _) = result["sources"]
        assert how == "memory" and first == 3 and second > first
        assert result["restored"] == undisturbed[second]
        assert result["last"] == undisturbed[8]
    assert {path.name for path in tmp_path.iterdir()} == {"step-6", "step-8"}, "not those of steps 2 and 4"


def committed_unseen(place: Rank, folder: str, run_id: str, ending: str) -> list[int]:
    """A fault after a save was committed and before the loop has looked; the steps of which the ledger says so."""
    recorder = Recorder()
    checkpointer = manager(folder, recorder, run_id, mode="async", every=2, snapshot_every=1)
    life, trainer, *_ = begin(place, folder, run_id, checkpointer=checkpointer)
    while trainer.state.step < 2:
        trainer.step(checkpointer)
    job = checkpointer._saves._job
    assert job is not None
    job.join(30)
    life.abort()
    if ending == "restart":
        begin(place, folder, run_id, in_process=True, checkpointer=checkpointer)
    checkpointer.close()
    remove_leftovers(named(run_id))
    return [event.step for event in recorder.events if isinstance(event, SaveCommitted)]


@pytest.mark.parametrize("ending", ["restart", "end"])
def test_a_save_committed_just_before_a_fault_is_told_of(two: World, tmp_path: Path, ending: str) -> None:
    assert two.run(committed_unseen, folder=str(tmp_path), run_id=f"unseen-{ending}", ending=ending) == [
        [2],
        [],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def write_slowly(*arguments: Any) -> list[dict[str, Any]]:
    time.sleep(1.0)
    return write_synchronously(*arguments)


def held_up(place: Rank, folder: str, run_id: str, mode: str) -> int:
    """How often a rank gives a sign of life while it waits for its last save, which takes a second longer."""
    checkpointer = manager(folder, Recorder(), run_id, mode=mode, every=2)
    life, trainer, *_ = begin(place, folder, run_id, checkpointer=checkpointer)
    before = life.beats
    if mode == "async":
        writer = writer_pid()
        os.kill(writer, signal.SIGSTOP)
    with patch.object(writing, "write_synchronously", write_slowly):
        while trainer.state.step < 2:
            trainer.step(checkpointer)
        if mode == "async":
            threading.Timer(1.0, os.kill, (writer, signal.SIGCONT)).start()
        checkpointer.finish()
    checkpointer.close()
    return life.beats - before


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_rank_that_waits_for_a_save_is_seen_to_live(two: World, tmp_path: Path, mode: str) -> None:
    """Whoever takes ranks without a heartbeat for hung must see that these are not."""
    assert min(two.run(held_up, folder=str(tmp_path), run_id=f"held-up-{mode}", mode=mode)) > 3
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def die_after(place: Rank, folder: str, run_id: str, steps: int, torn: bool = False, **settings: Any) -> None:
    """SIGKILL this process, between steps or (`torn`) in the middle of a copy."""
    *_, trainer, checkpointer, _ = begin(
        place, folder, run_id, **{"mode": "sync", "snapshot_every": 1, **settings}
    )
    for _ in range(steps):
        trainer.step(checkpointer)
    if torn:
        copy = Staging._copy

        def half(self: Staging, places: Any, names: Any) -> None:
            names = list(names)
            copy(self, places, names[: len(names) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        Staging._copy = half  # type: ignore[method-assign]
        trainer.step(checkpointer)
    checkpointer._settle(0.0)
    os.kill(os.getpid(), signal.SIGKILL)


def die(folder: Path, run_id: str, steps: int, **arguments: Any) -> None:
    with World(2) as world:
        world.start(die_after, folder=str(folder), run_id=run_id, steps=steps, **arguments)
        for process in world.processes:
            process.join(60)
            assert process.exitcode == -signal.SIGKILL


def resume(world: World, folder: Path, run_id: str) -> list[dict[str, Any]]:
    return world.run(train, folder=str(folder), run_id=run_id, until=8, mode="sync", snapshot_every=1)


def test_respawned_processes_find_the_snapshot_in_shared_memory(
    two: World, tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    die(tmp_path, "respawn", 5)
    assert len(arenas("respawn")) == 2
    for result in resume(two, tmp_path, "respawn"):
        assert (result["from"], result["source"]) == (5, "shared_memory")
        assert result["digests"][5] == undisturbed[5] and result["digests"][8] == undisturbed[8]
    assert arenas("respawn") == []


def test_a_snapshot_torn_by_a_kill_is_not_used(
    two: World, tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    die(tmp_path, "torn", 4, torn=True)
    for result in resume(two, tmp_path, "torn"):
        assert (result["from"], result["source"]) == (4, "shared_memory")
        assert result["digests"][8] == undisturbed[8]


def spoil_the_bytes(run_id: str) -> None:
    path = SHARED_MEMORY / arenas(run_id)[1]
    content = bytearray(path.read_bytes())
    for place in range(len(content) - (64 << 10), len(content), 256):
        content[place] ^= 1
    path.write_bytes(content)


def lose_one(run_id: str) -> None:
    (SHARED_MEMORY / arenas(run_id)[0]).unlink()


@pytest.mark.parametrize("harm", [spoil_the_bytes, lose_one])
def test_ranks_go_to_storage_together_where_one_has_no_snapshot(
    two: World, tmp_path: Path, undisturbed: dict[int, str], harm: Any
) -> None:
    die(tmp_path, "harm", 5, every=3)
    harm("harm")
    for result in resume(two, tmp_path, "harm"):
        assert (result["from"], result["source"]) == (3, "storage")
        assert result["digests"][8] == undisturbed[8]


def test_another_world_size_does_not_use_the_snapshots(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    die(tmp_path, "size", 5, every=3)
    with World(1) as one:
        (result,) = resume(one, tmp_path, "size")
    assert (result["from"], result["source"]) == (3, "storage")
    assert [name.rsplit("-", 1)[1] for name in arenas("size")] == [
        "1"
    ]  # nobody's any more: the supervisor's to remove
    assert [path.name for path in remove_leftovers(named("size"))] and arenas("size") == []


def train_without_shared_memory(place: Rank, shm: str, **arguments: Any) -> dict[str, Any]:
    preparation.arena_path = lambda run_id, rank: Path(shm) / f"{run_id}-{rank}"  # type: ignore[assignment]
    return train(place, **arguments)


def test_a_small_shared_memory_is_told_and_worked_around(small_disk: Path, tmp_path: Path) -> None:
    with World(2) as world:
        results = world.run(
            train_without_shared_memory, shm=str(small_disk), folder=str(tmp_path), run_id="small", until=4,
            width=200, mode="async", every=2,
        )  # fmt: skip
    for result in results:
        told = [fields for _, event, fields in result["lines"] if event.startswith("snapshots are private")]
        assert "No space left" in told[0]["reason"]
    assert results[0]["committed"] == [2, 4]
    assert list(small_disk.iterdir()) == []
