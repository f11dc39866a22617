"""A fault that ends the run lets the save that is about to end be committed: nobody goes on from memory."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from ckpt_world import Rank, Recorder, TestLife, Trainer, World, manager, named, wait_for_writer, writer_pid

from runner.checkpoint.shm import remove_leftovers
from runner.ledger.events import SaveCommitted


def await_keys(life: TestLife, *keys: str) -> None:
    """A blocking wait would keep the save's thread from the store as well."""
    end = time.monotonic() + 60
    while not life.store.check(list(keys)):
        assert time.monotonic() < end, keys
        time.sleep(0.01)


def ends_with_a_fault(place: Rank, folder: str, run_id: str) -> dict[str, Any]:
    """Two steps with a save whose writers stand still; then rank 1 has a fault, and rank 0 waits for it."""
    recorder = Recorder()
    life = place.life()
    trainer = Trainer(life)
    checkpointer = manager(folder, recorder, run_id, mode="async", every=2)
    try:
        checkpointer.attach(life, trainer.state)
        checkpointer.restore()
        wait_for_writer(checkpointer._writing)
        os.kill(writer_pid(), signal.SIGSTOP)
        for _ in range(2):
            trainer.step(checkpointer)
        life.store.set(f"saving/{place.rank}", "1")
        await_keys(life, "saving/0", "saving/1")
        if place.rank == 0:
            threading.Timer(0.3, os.kill, (writer_pid(), signal.SIGCONT)).start()
            await_keys(life, "gone")  # as in a collective
        else:
            checkpointer._saves._last_chance = 0.1
            life.last_words()
            given_up = recorder.said("save given up")
            checkpointer._saves._last_chance = 60.0
            threading.Timer(0.3, os.kill, (writer_pid(), signal.SIGCONT)).start()
            life.last_words()
            life.store.set("gone", "1")
        life.abort()
    finally:
        checkpointer.close()
        remove_leftovers(named(run_id))
    return {
        "given up": [] if place.rank == 0 else given_up,
        "committed": [event.step for event in recorder.of(SaveCommitted)],
        "said": [event for _, event, _ in recorder.lines],
    }


def test_the_save_under_way_is_committed_where_the_fault_ends_the_run(two: World, tmp_path: Path) -> None:
    first, second = two.run(ends_with_a_fault, folder=str(tmp_path), run_id="last")
    assert [fields["step"] for fields in second["given up"]] == [2], (
        "a write that takes too long is not waited for"
    )
    assert second["said"].count("save given up") == 1
    assert first["committed"] == [2]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2"]
