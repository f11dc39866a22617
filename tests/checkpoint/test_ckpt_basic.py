"""Save, commit, restore: both modes, from memory, from storage, at another world size."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckpt_world import Rank, Recorder, Trainer, World, arenas, manager

from runner.ledger.events import SaveCommitted, SnapshotTaken


def digest(state: dict[str, torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(state):
        hasher.update(name.encode() + state[name].contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def train(
    place: Rank,
    folder: str,
    run_id: str,
    until: int,
    sharding: str = "fsdp",
    finish: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    life = place.life()
    recorder = Recorder()
    trainer = Trainer(life, sharding=sharding)
    checkpointer = manager(folder, recorder, run_id, **settings)
    checkpointer.attach(life, trainer.state)
    step, source = checkpointer.restore()
    digests = {step: digest(trainer.full_state())}
    while trainer.state.step < until:
        trainer.step(checkpointer)
        digests[trainer.state.step] = digest(trainer.full_state())
    if finish:
        checkpointer.finish()
    checkpointer.close()
    return {
        "from": step,
        "source": source,
        "digests": digests,
        "losses": trainer.losses,
        "committed": [event.step for event in recorder.of(SaveCommitted)],
        "snapshots": [event.step for event in recorder.of(SnapshotTaken)],
    }


@pytest.fixture(scope="module")
def world():
    with World(2) as two:
        yield two


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_saves_and_another_goes_on_bit_identically(world: World, tmp_path: Path, mode: str) -> None:
    whole = world.run(train, folder=str(tmp_path / "a"), run_id=f"a{mode}", until=6, mode=mode)
    first = world.run(train, folder=str(tmp_path / "b"), run_id=f"b{mode}", until=3, mode=mode, every=2)
    second = world.run(train, folder=str(tmp_path / "b"), run_id=f"b{mode}", until=6, mode=mode, every=2)
    assert first[0]["committed"] == [2, 3]
    assert (second[0]["from"], second[0]["source"]) == (3, "storage")
    assert second[0]["digests"][3] == first[0]["digests"][3]
    assert second[0]["digests"][6] == whole[0]["digests"][6]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["step-3", "step-4", "step-6"]
    assert arenas(f"b{mode}") == []


def test_plain_dcp_reads_what_was_written(world: World, tmp_path: Path) -> None:
    results = world.run(train, folder=str(tmp_path), run_id="plain", until=2, mode="async")
    metadata = dcp.FileSystemReader(tmp_path / "step-2").read_metadata()
    state = {
        name: torch.empty(md.size, dtype=md.properties.dtype)
        for name, md in metadata.state_dict_metadata.items()
    }
    dcp.load(state, checkpoint_id=str(tmp_path / "step-2"), no_dist=True)
    assert digest(state) == results[0]["digests"][2]
