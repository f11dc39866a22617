"""Which buffers are page-locked when, with a driver that only takes notes: a machine without a GPU has none."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_world import Rank, Recorder, Trainer, World, manager

from runner.checkpoint.arena import Arena, Purpose, open_arena
from runner.checkpoint.pinning import PinnedPages
from runner.checkpoint.staging import Staging
from runner.errors import RunError
from runner.ledger.events import SnapshotTaken

PURPOSE = Purpose("run", 0, 1, "layout", "fingerprint", buffers=3, buffer_bytes=4096, mailbox_bytes=4096)


class Driver:
    """The part of the CUDA runtime that locks pages."""

    class cudaError:
        success = 0

    def __init__(self) -> None:
        self.locked: list[int] = []
        self.unlocked: list[int] = []
        self.answers: list[int] = []
        self.news = threading.Condition()

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
        with self.news:
            self.locked.append(start)
            self.news.notify_all()
        return self.answers.pop(0) if self.answers else 0

    def cudaHostUnregister(self, start: int) -> int:
        self.unlocked.append(start)
        return 0

    def came_to(self, count: int) -> bool:
        with self.news:
            return self.news.wait_for(lambda: len(self.locked) >= count, 10)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return driver


@pytest.fixture
def arena(tmp_path: Path) -> Any:
    arena = open_arena(tmp_path / "arena", PURPOSE)
    yield arena
    arena.close(remove=True)


def places(arena: Arena) -> list[int]:
    whole = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    return [whole + arena.buffer_start(index) for index in range(PURPOSE.buffers)]


def test_the_buffer_to_restore_from_comes_first_and_the_others_wait_for_the_first_step(
    arena: Arena, driver: Driver
) -> None:
    first, second, third = places(arena)
    pages = PinnedPages(arena)
    assert driver.locked == []
    pages.wait(1)
    assert driver.locked == [second]
    assert [pages.ready(index) for index in range(3)] == [False, True, False]
    pages.go_on()
    assert driver.came_to(3)
    assert driver.locked == [second, first, third]
    pages.release()
    assert sorted(driver.unlocked) == [first, second, third]


def test_who_needs_another_buffer_does_not_wait_for_a_step(arena: Arena, driver: Driver) -> None:
    pages = PinnedPages(arena)
    pages.begin(0)
    pages.wait(2)
    assert driver.locked == places(arena)


def test_pages_that_were_never_needed_are_not_locked_at_the_end(arena: Arena, driver: Driver) -> None:
    pages = PinnedPages(arena)
    pages.wait(0)
    pages.release()
    assert driver.locked == driver.unlocked == places(arena)[:1]
    PinnedPages(arena).release()
    assert driver.locked == places(arena)[:1]


def test_a_limit_of_locked_memory_is_named(arena: Arena, driver: Driver) -> None:
    driver.answers = [2]
    pages = PinnedPages(arena)
    with pytest.raises(
        RunError, match=r"3 x 4096 bytes .* cannot be pinned \(cudaHostRegister: error 2\).*ulimit -l"
    ):
        pages.wait(0)
    pages.release()
    assert driver.unlocked == []


def first_steps(place: Rank, folder: str) -> list[int]:
    """How often, by the end of each step, other memory was allowed to be made ready."""
    calls: list[Staging] = []
    Staging.started = lambda staging: calls.append(staging)  # type: ignore[method-assign]
    checkpointer = manager(folder, Recorder(), "first", mode="async", every=100)
    life = place.life()
    trainer = Trainer(life)
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    counts = []
    for _ in range(3):
        trainer.step(checkpointer)
        counts.append(len(calls))
    checkpointer.finish()
    checkpointer.close()
    return counts


def test_nothing_is_made_ready_before_the_first_step_is_over(one: World, tmp_path: Path) -> None:
    assert one.run(first_steps, folder=str(tmp_path)) == [[0, 1, 2]]


def late(place: Rank, folder: str) -> list[int]:
    """Steps of which snapshots were taken, where memory is ready only after two looks."""
    looks = []

    def ready(staging: Staging, buffer: Any) -> bool:
        looks.append(buffer)
        return len(looks) > 2

    Staging.ready = ready  # type: ignore[method-assign]
    recorder = Recorder()
    checkpointer = manager(folder, recorder, "late", mode="async", every=100, snapshot_every=4)
    life = place.life()
    trainer = Trainer(life)
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    while trainer.state.step < 9:
        trainer.step(checkpointer)
    checkpointer.finish()
    checkpointer.close()
    return [event.step for event in recorder.of(SnapshotTaken)]


def test_a_snapshot_whose_memory_is_not_ready_is_taken_a_little_later(one: World, tmp_path: Path) -> None:
    assert one.run(late, folder=str(tmp_path)) == [[6, 8, 9]], "the last is the end's"
