"""Hundreds of saves: finished, and memory does not grow.

The allocator's heaps fill up over the first two or three hundred saves, a few MB in all, and stay: so the long test
measures two hundred saves after two hundred others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from ckpt_world import Rank, Recorder, Trainer, World, manager, named

from runner.checkpoint.shm import SHARED_MEMORY
from runner.ledger.events import SaveCommitted

WIDTH = 160  # a rank's part of a checkpoint has 0.3 MB, so that what is kept of each save shows


def shared_bytes(rank: int) -> int:
    return sum(path.stat().st_blocks * 512 for path in SHARED_MEMORY.glob(f"nvrx-{named('flat')}-*-{rank}"))


def save_often(place: Rank, folder: str, saves: int, mode: str) -> dict[str, Any]:
    life, recorder = place.life(), Recorder()
    trainer = Trainer(life, width=WIDTH)
    checkpointer = manager(folder, recorder, "flat", mode=mode, every=1)
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    here = psutil.Process()
    samples = []
    for step in range(1, saves + 1):
        trainer.step(checkpointer)
        if step % 20 == 0:
            family = [here, *here.children(recursive=True)]
            samples.append(
                (
                    [p.memory_info().rss >> 10 for p in family],
                    shared_bytes(place.rank),
                    len(here.open_files()),
                )
            )
    checkpointer.finish()
    checkpointer.close()
    return {"samples": samples, "committed": len(recorder.of(SaveCommitted))}


def check(folder: Path, saves: int, mode: str, *, warm: int, growth: int) -> None:
    """Save `saves` times; memory of no process may grow by more than `growth` KiB after the first `warm` ones."""
    with World(2) as world:
        results = world.run(save_often, folder=str(folder), saves=saves, mode=mode, timeout=120 + 2 * saves)
    assert results[0]["committed"] == saves
    for result in results:
        (first, shared, files), *_, (last, shared_at_end, files_at_end) = result["samples"][warm // 20 - 1 :]
        grown = [after - before for before, after in zip(first, last, strict=True)]
        assert max(grown) < growth, result["samples"]
        assert shared_at_end == shared and files_at_end <= files


def test_memory_is_flat_over_sixty_saves(tmp_path: Path) -> None:
    check(tmp_path, 60, "async", warm=20, growth=4096)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_memory_is_flat_over_two_hundred_saves(tmp_path: Path, mode: str) -> None:
    check(tmp_path, 400, mode, warm=200, growth=2048)
