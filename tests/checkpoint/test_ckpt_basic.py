"""Save, commit, restore from storage: both modes, any world size, FSDP2 and DDP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckpt_world import World, arenas, attempt, digest, named, train

from runner.checkpoint.shm import remove_leftovers


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_saves_and_another_goes_on_bit_identically(two: World, tmp_path: Path, mode: str) -> None:
    whole = two.run(train, folder=str(tmp_path / "a"), run_id=f"a{mode}", until=6, mode="sync")
    first = two.run(train, folder=str(tmp_path / "b"), run_id=f"b{mode}", until=3, mode=mode, every=2)
    second = two.run(train, folder=str(tmp_path / "b"), run_id=f"b{mode}", until=6, mode="sync", every=2)
    assert first[0]["committed"] == [2, 3]
    assert (second[0]["from"], second[0]["source"]) == (3, "storage")
    assert second[0]["digests"][3] == first[0]["digests"][3]
    assert second[0]["digests"][6] == whole[0]["digests"][6]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["step-3", "step-4", "step-6"]
    assert arenas(f"b{mode}") == []


def read_plainly(folder: Path) -> dict[str, torch.Tensor]:
    """What `torch.distributed.checkpoint` alone makes of a checkpoint."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    state = {
        n: torch.empty(md.size, dtype=md.properties.dtype) for n, md in metadata.state_dict_metadata.items()
    }
    dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    return state


def test_sync_and_async_write_the_same_state_and_plain_dcp_reads_it(two: World, tmp_path: Path) -> None:
    # Training goes on during the asynchronous write of step 2: what is read back must still be step 2.
    results = two.run(train, folder=str(tmp_path / "async"), run_id="plain", until=5, mode="async", every=2)
    two.run(train, folder=str(tmp_path / "sync"), run_id="plain", until=2, mode="sync")
    expected = results[0]["digests"][2]
    assert digest(read_plainly(tmp_path / "async" / "step-2")) == expected
    assert digest(read_plainly(tmp_path / "sync" / "step-2")) == expected


@pytest.mark.parametrize("sharding", ["fsdp", "ddp"])
def test_another_world_size_goes_on_with_the_same_weights_and_losses(
    two: World, one: World, tmp_path: Path, sharding: str
) -> None:
    whole = one.run(train, folder=str(tmp_path / "whole"), run_id="whole", until=6, mode="sync")
    for first, second, name in ((two, one, "21"), (one, two, "12")):
        settings = {"folder": str(tmp_path / name), "run_id": f"reshard{name}", "mode": "sync"}
        saved = first.run(train, until=3, sharding=sharding, **settings)
        resumed = second.run(train, until=6, sharding=sharding, **settings)
        assert resumed[0]["from"] == 3
        assert resumed[0]["digests"][3] == saved[0]["digests"][3]
        for step in (4, 5, 6):
            assert resumed[0]["losses"][step] == pytest.approx(whole[0]["losses"][step], rel=1e-5)


def test_replicas_are_written_once_and_the_work_is_shared(two: World, tmp_path: Path) -> None:
    two.run(train, folder=str(tmp_path), run_id="ddp", until=1, sharding="ddp", mode="sync", width=64)
    record = json.loads((tmp_path / "step-1" / "commit.json").read_text())["record"]
    items = [tuple(item[:1]) for file in record["files"] for item in file["items"]]
    assert len(items) == len(set(items)) == len(record["tensors"])
    share = [sum(f["size"] for f in record["files"] if f["name"].startswith(f"__{rank}_")) for rank in (0, 1)]
    assert 0.5 < share[0] / share[1] < 2


def test_a_finished_run_started_again_rewrites_nothing(two: World, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "run_id": "again", "until": 2, "mode": "sync"}
    two.run(train, **arguments)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    results = two.run(train, **arguments)
    assert results[0]["from"] == 2 and results[0]["committed"] == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_models_checkpoints_are_refused_in_words(two: World, tmp_path: Path) -> None:
    two.run(train, folder=str(tmp_path), run_id="other", until=2, mode="sync", width=13)
    results = two.run(attempt, folder=str(tmp_path), run_id="other", until=4, mode="sync", width=16)
    for result in results:
        assert result["code"] == 2
        assert "written for another model" in result["error"]
        assert "model.inner.0.bias is ['float32', [13]] there and ['float32', [16]]" in result["error"]
    remove_leftovers(named("other"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_steps_are_compared_as_numbers_and_unfinished_ones_ignored_with_a_warning(
    two: World, tmp_path: Path
) -> None:
    two.run(train, folder=str(tmp_path), run_id="order", until=10, mode="sync", every=9)
    (tmp_path / "step-11.abc-1.partial").mkdir()
    (tmp_path / "step-11.abc-1.partial" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "step-12.deleting").mkdir()
    results = two.run(train, folder=str(tmp_path), run_id="order", until=11, mode="sync")
    assert results[0]["from"] == 10
    warned = [fields["path"] for _, event, fields in results[0]["lines"] if event.startswith("unfinished")]
    assert [Path(path).name for path in warned] == ["step-11.abc-1.partial", "step-12.deleting"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11", "step-9"]
