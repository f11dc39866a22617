"""Kills at random moments of a run that saves every step: nothing committed is lost, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from ckpt_world import (
    Rank,
    Recorder,
    Trainer,
    World,
    digest,
    manager,
    named,
    train,
    wait_for_writer,
    writer_pid,
)

from runner.checkpoint import save as save_module
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.shm import remove_leftovers
from runner.checkpoint.writing import Writing


@pytest.fixture(scope="module")
def whole(two: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("whole")
    return two.run(train, folder=str(folder), run_id="whole6", until=6, mode="sync")[0]["digests"][6]


def train_with_pauses(
    place: Rank, folder: str, run_id: str, until: int, seed: int, **settings: Any
) -> dict[str, Any]:
    """Like `train`, at a pace at which kills hit every part of a save."""
    chance = random.Random(seed)
    recorder = Recorder()
    life = place.life()
    trainer = Trainer(life)
    checkpointer = manager(folder, recorder, run_id, **settings)
    checkpointer.attach(life, trainer.state)
    step, source = checkpointer.restore()
    (Path(folder).parent / f"from-{place.world_id}-{place.rank}").write_text(f"{step} {source}")
    while trainer.state.step < until:
        trainer.step(checkpointer)
        time.sleep(chance.random() * 0.02)
    last = digest(trainer.full_state())
    checkpointer.finish()
    checkpointer.close()
    return {"last": last}


def newest_commit(folder: Path) -> int:
    return max((entry.step for entry in CheckpointFolder(folder).committed()), default=0)


def crash(folder: Path, mode: str, kills: int) -> tuple[list[int], int, str]:
    """Kill `kills` times, then let the run finish, some steps later however far it has come.

    Returns:
        the steps at which lives resumed, the last step, and the state after it.
    """
    chance = random.Random(f"{mode} {kills}")
    run_id, resumed, floor = f"crash-{mode}", [], 0
    for number in range(kills + 1):
        until = floor + 20 if number == kills else 1_000_000
        with World(2) as world:
            world.start(
                train_with_pauses,
                folder=str(folder),
                run_id=run_id,
                until=until,
                seed=number,
                mode=mode,
                every=1,
            )
            marks = [folder.parent / f"from-{world.name}-{rank}" for rank in range(2)]
            deadline = time.monotonic() + 60
            while not all(mark.exists() and mark.read_text() for mark in marks):
                assert time.monotonic() < deadline and all(p.is_alive() for p in world.processes)
                time.sleep(0.005)
            steps = {int(mark.read_text().split()[0]) for mark in marks}
            assert len(steps) == 1, "the ranks resumed from different steps"
            assert steps.pop() >= floor, f"a life resumed before the committed step {floor}"
            resumed.append(int(marks[0].read_text().split()[0]))
            if number == kills:
                results = world.results(120)
                assert results[0]["last"] == results[1]["last"]
                remove_leftovers(named(run_id))
                return resumed, until, results[0]["last"]
            time.sleep(chance.random() * (0.6 if mode == "sync" or number % 3 == 0 else 5.0))
            children = [c for p in world.processes for c in psutil.Process(p.pid).children(recursive=True)]
            victims = [0, 1] if chance.random() < 0.5 else [chance.randrange(2)]
            world.kill(*victims)
            world.kill(0, 1)  # as a launcher does once one has died
            _, alive = psutil.wait_procs(children, timeout=10)
            assert not alive, f"outlived their rank: {alive}"
            floor = newest_commit(folder)
        if chance.random() < 0.5:  # half of the time the node is lost too: only storage is left
            remove_leftovers(named(run_id))
    raise AssertionError("not reached")


def undisturbed(tmp_path: Path, until: int) -> str:
    with World(2) as world:
        arguments: dict[str, Any] = {"folder": str(tmp_path / "whole"), "run_id": "whole", "mode": "sync"}
        results = world.run(train, until=until, timeout=60 + until, each_step=False, **arguments)
        return results[0]["digests"][until]


@pytest.mark.parametrize(("mode", "kills"), [("sync", 5), ("async", 3)])
def test_a_few_kills_lose_nothing_committed(tmp_path: Path, mode: str, kills: int) -> None:
    resumed, until, last = crash(tmp_path / "c", mode, kills)
    assert last == undisturbed(tmp_path, until)
    assert resumed[-1] > 0
    left = [path.name for path in (tmp_path / "c").iterdir()]
    assert sorted(left) == sorted(f"step-{until - i}" for i in range(3))


def die_in_the_save(place: Rank, window: str, **arguments: Any) -> None:
    """Rank 0 is killed in the save of step 4."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if place.rank == 0 and window == "shards are written":
        count = itertools.count(1)
        metadata = save_module.dcp_metadata
        save_module.dcp_metadata = lambda *a: die() if next(count) == 2 else metadata(*a)  # type: ignore[assignment,return-value]
    elif place.rank == 0 and window != "the writer writes":
        commit = CheckpointFolder.commit

        def dying(self: CheckpointFolder, partial: Path, step: int) -> Path:
            if step == 4:
                if window == "the rename is done":
                    commit(self, partial, step)
                die()
            return commit(self, partial, step)

        CheckpointFolder.commit = dying  # type: ignore[method-assign]
    elif place.rank == 0:
        begin = Writing.begin

        def stopped(self: Writing, partial: Path, buffer: Any) -> Any:
            if partial.name.startswith("step-4"):
                wait_for_writer(self)
                os.kill(writer_pid(), signal.SIGSTOP)
                begin(self, partial, buffer)
                time.sleep(1)  # its peer's writer has written by now, this rank's never will
                die()
            return begin(self, partial, buffer)

        Writing.begin = stopped  # type: ignore[method-assign]
    train(place, **arguments)


@pytest.mark.parametrize(
    ("mode", "window", "resumes"),
    [
        ("sync", "shards are written", 2),
        ("async", "the writer writes", 2),
        ("sync", "the record is written", 2),
        ("sync", "the rename is done", 4),
    ],
)
def test_a_kill_in_each_window_of_a_save(
    two: World, whole: str, tmp_path: Path, mode: str, window: str, resumes: int
) -> None:
    arguments: dict[str, Any] = {"folder": str(tmp_path / "c"), "run_id": "window", "mode": mode, "every": 2}
    with World(2) as world:
        world.start(die_in_the_save, window=window, until=6, **arguments)
        world.processes[0].join(60)
        assert world.processes[0].exitcode == -signal.SIGKILL
        world.kill(1)
    remove_leftovers(named("window"))
    results = two.run(train, until=6, **{**arguments, "mode": "sync"})
    for result in results:
        assert (result["from"], result["source"]) == (resumes, "storage")
        assert result["digests"][6] == whole
    ignored = [fields["path"] for _, event, fields in results[0]["lines"] if event.startswith("unfinished")]
    assert [Path(path).name.partition(".")[0] for path in ignored] == (["step-4"] if resumes == 2 else [])
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-2", "step-4", "step-6"]


def see_nothing(place: Rank, blind: int, **arguments: Any) -> dict[str, Any]:
    """One rank's view of the shared folder is empty, as a cached listing may be."""
    entries = CheckpointFolder.entries
    if place.rank == blind:
        CheckpointFolder.entries = lambda self: []  # type: ignore[method-assign]
    try:
        return train(place, **arguments)
    finally:
        CheckpointFolder.entries = entries  # type: ignore[method-assign]


def test_a_rank_that_sees_another_folder_follows_rank_0(two: World, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"folder": str(tmp_path), "run_id": "blind", "mode": "sync"}
    two.run(train, until=2, **arguments)
    results = two.run(see_nothing, blind=1, until=3, **arguments)
    assert [(result["from"], result["source"]) for result in results] == [(2, "storage")] * 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_hundred_kills_lose_nothing_committed(tmp_path: Path, mode: str) -> None:
    resumed, until, last = crash(tmp_path / "c", mode, 100)
    assert last == undisturbed(tmp_path, until)
    assert len(resumed) == 101 and resumed[-1] > resumed[1]
