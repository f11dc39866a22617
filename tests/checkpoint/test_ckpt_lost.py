"""What is no failure of a save although it looks like one, and what is one although it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ckpt_world import Rank, Recorder, Trainer, World, manager, named

import runner.checkpoint.save as save
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode, RunError


def save_once(place: Rank, folder: str, run_id: str, mode: str, fault: str) -> dict[str, Any]:
    """Two steps with a save after the first; what ended them."""
    life, recorder = place.life(), Recorder()
    trainer = Trainer(life)
    checkpointer = manager(folder, recorder, run_id, mode=mode, every=1)
    if fault == "store":
        working = Exchange.put

        def put(self: Exchange, key: str, value: Any) -> None:
            if key.startswith("save/"):
                raise dist.DistNetworkError("Connection reset by peer")
            working(self, key, value)

        Exchange.put = put  # type: ignore[method-assign]
    else:
        describe = save.dcp_metadata

        def clear_up(tensors: Any, files: Any) -> bytes:
            for path in Path(folder).glob("*.partial/*.distcp"):
                path.unlink()
            return describe(tensors, files)

        save.dcp_metadata = clear_up
        save._SIGHT = 0.1
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    ended: dict[str, Any] = {}
    try:
        trainer.step(checkpointer)
        checkpointer.finish()
    except RunError as error:
        ended = {"kind": "failed", "code": int(error.exit_code), "text": str(error)}
    except dist.DistNetworkError as error:
        ended = {"kind": "lost", "text": str(error)}
    finally:
        checkpointer.close()
        remove_leftovers(named(run_id))  # a rank that fails leaves its memory to a successor
    return ended


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lost_store_is_the_death_of_the_rank_that_served_it_and_no_failed_save(
    tmp_path: Path, mode: str
) -> None:
    with World(1) as world:
        (ended,) = world.run(save_once, folder=str(tmp_path), run_id=f"lost-{mode}", mode=mode, fault="store")
    assert ended == {"kind": "lost", "text": "Connection reset by peer"}


def test_files_that_vanish_between_write_and_commit_are_a_failed_save(tmp_path: Path) -> None:
    with World(1) as world:
        (ended,) = world.run(save_once, folder=str(tmp_path), run_id="vanished", mode="async", fault="files")
    assert (ended["kind"], ended["code"]) == ("failed", ExitCode.SAVE_FAILED)
    assert ".distcp is missing although it was written" in ended["text"]
    assert not [path for path in tmp_path.iterdir() if path.name == "step-1"]
