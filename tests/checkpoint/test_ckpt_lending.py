"""Buffers that abandoned saves leave to the writer: each comes back when its own write has ended, or had its time."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ckpt_world import (
    Rank,
    Recorder,
    Trainer,
    World,
    digest,
    manager,
    section,
    train,
    wait_for_writer,
    writer_pid,
)

from runner.checkpoint.buffers import Buffer
from runner.checkpoint.writing import Writing


class ScriptedWriter:
    """A writer process that does what the test says, when it says so."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.killed: str | None = None

    def submit(self, function: Any, args: tuple[Any, ...]) -> None:
        self.requests.append(args[0].save)

    def idle(self) -> bool:
        return not self.requests

    def death(self) -> str | None:
        return self.killed

    def kill(self, reason: str | None = None) -> None:
        self.killed = reason


class Desk:
    """A `Writing` with a scripted writer, and saves begun by hand."""

    def __init__(self, timeout: float = 60) -> None:
        self.writers: list[ScriptedWriter] = []
        self.mail: dict[str, Any] | None = None
        self.log = Recorder()
        settings = section(write_timeout=timedelta(seconds=timeout))
        self.writing = Writing(settings, self.log, lambda: None, self._start)  # type: ignore[arg-type]
        arena: Any = SimpleNamespace(path="arena", read_mail=lambda: self.mail)
        self.writing.bind(0, arena, ("a file",))  # type: ignore[arg-type]

    def _start(self, rank: int) -> ScriptedWriter:
        self.writers.append(ScriptedWriter())
        return self.writers[-1]

    def save(self, step: int, age: float = 0.0, *, alive: bool = False) -> tuple[Buffer, Any]:
        """Begin a save `age` seconds ago; unless `alive` it has been abandoned since."""
        buffer, partial = Buffer(step, step=step), Path(f"step-{step}.partial")
        part = self.writing.begin(partial, buffer)
        job: Any = SimpleNamespace(
            step=step, partial=partial, started=time.monotonic() - age, write_finished=threading.Event(),
            is_alive=lambda: alive,
        )  # fmt: skip
        self.writing.lend(buffer, job)
        return buffer, part

    def report(self, step: int, **what: Any) -> None:
        self.mail = {"save": f"step-{step}.partial", "files": [], **what}

    def lent(self) -> list[int]:
        self.writing.collect()
        return [buffer.step for buffer in self.writing.lent()]


def test_every_abandoned_save_gives_its_buffer_back() -> None:
    desk = Desk()
    for step in (1, 2, 3):
        desk.save(step)
    assert desk.lent() == [1, 2, 3]
    desk.report(1)
    assert desk.lent() == [2, 3]
    desk.report(3)  # the report of 2 has been overwritten unseen: the writer works in order
    assert desk.lent() == []


def test_a_failed_write_has_left_its_buffer_too() -> None:
    desk = Desk()
    _, part = desk.save(1)
    desk.report(1, error="No space left on device")
    assert desk.lent() == []
    with pytest.raises(Exception, match="No space left"):
        part()


def test_a_writer_that_is_busy_with_the_next_save_is_not_killed_for_the_one_it_has_finished() -> None:
    desk = Desk(timeout=30)
    desk.save(1, age=31)
    desk.report(1)
    desk.save(2, age=1, alive=True)
    assert desk.lent() == [2]
    assert len(desk.writers) == 1 and desk.writers[0].killed is None


def test_each_write_has_a_deadline_of_its_own() -> None:
    desk = Desk(timeout=30)
    _, first = desk.save(1, age=10)
    desk.save(2, age=5)
    assert desk.lent() == [1, 2] and desk.writers[0].killed is None
    desk.save(3, age=31)
    assert desk.lent() == []  # the process that read all of them is gone
    assert desk.writers[0].killed is not None and "step 3" in desk.writers[0].killed
    assert desk.log.said("writer process killed")
    with pytest.raises(Exception, match="abandoned save of step 3"):
        first()
    desk.save(4)
    assert len(desk.writers) == 2 and desk.lent() == [4]


def test_a_save_that_is_waited_for_is_left_to_its_own_deadline() -> None:
    desk = Desk(timeout=30)
    desk.save(1, age=31, alive=True)
    assert desk.lent() == [1] and desk.writers[0].killed is None


def abandon_two_in_a_row(place: Rank, folder: str, run_id: str) -> dict[str, Any]:
    """Two lives end while the writer, which is stopped, has both their saves before it."""
    recorder = Recorder()
    checkpointer = manager(folder, recorder, run_id, mode="async", every=2, snapshot_every=1)
    trainer, life = None, None
    for number in range(3):
        if life is not None:
            life.abort()
        life = place.life(in_process=number > 0)
        trainer = Trainer(life)
        checkpointer.attach(life, trainer.state)
        checkpointer.restore()
        if number == 0:
            wait_for_writer(checkpointer._writing)
            os.kill(writer_pid(), signal.SIGSTOP)
        if number < 2:
            while trainer.state.step < 2 * number + 2:
                trainer.step(checkpointer)
    assert trainer is not None and checkpointer._staging is not None
    os.kill(writer_pid(), signal.SIGCONT)
    used = set()
    while trainer.state.step < 12:
        trainer.step(checkpointer)
        newest = checkpointer._staging.buffers.newest()
        assert newest is not None and newest.step == trainer.state.step, "a snapshot was left out"
        used.add(newest.index)
        checkpointer._saves.drain()
    last = digest(trainer.full_state())
    checkpointer.finish()
    checkpointer.close()
    return {"used": used, "last": last}


def test_two_abandoned_saves_in_a_row_cost_no_buffer(tmp_path: Path) -> None:
    with World(2) as two:
        whole = two.run(train, folder=str(tmp_path / "a"), run_id="whole", until=12, mode="sync")
        for result in two.run(abandon_two_in_a_row, folder=str(tmp_path / "b"), run_id="row"):
            assert result["used"] == {0, 1, 2}
            assert result["last"] == whole[0]["digests"][12]


def load_while_the_writer_reads(place: Rank, folder: str, run_id: str) -> tuple[int, str]:
    """Both buffers belong to abandoned saves, and only storage has a state that all ranks can use."""
    checkpointer = manager(folder, Recorder(), run_id, mode="async", every=2)
    life, came_from = None, (0, "")
    timer = threading.Timer(1.0, lambda: os.kill(writer_pid(), signal.SIGCONT))
    for number in range(3):
        if life is not None:
            life.abort()
        life = place.life(in_process=number > 0)
        trainer = Trainer(life)
        checkpointer.attach(life, trainer.state)
        if number == 2:
            assert checkpointer._staging.buffers.free() is None
            if place.rank == 1:
                for buffer in checkpointer._staging.buffers:
                    checkpointer._staging.buffers.forget(buffer)
            timer.start()
        came_from = checkpointer.restore()
        for target in {0: (2, 4), 1: (6,), 2: (8,)}[number]:
            while trainer.state.step < target:
                trainer.step(checkpointer)
            if target == 2:
                checkpointer._saves.drain()
                wait_for_writer(checkpointer._writing)
                os.kill(writer_pid(), signal.SIGSTOP)
    checkpointer.finish()
    checkpointer.close()
    return came_from


def test_a_load_waits_for_buffers_that_a_writer_still_reads(tmp_path: Path) -> None:
    with World(2) as two:
        results = two.run(load_while_the_writer_reads, folder=str(tmp_path), run_id="room")
    assert results == [(2, "storage")] * 2
