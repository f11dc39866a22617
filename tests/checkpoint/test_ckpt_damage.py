"""Damaged checkpoints: found, set aside, the one before used; nothing in them is ever executed."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ckpt_world import World, attempt, named, train

from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode


@pytest.fixture(scope="module")
def good(two: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    two.run(train, folder=str(folder), run_id="good", until=4, mode="sync", every=2)
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = random.Random(path.name).randrange(len(content))
    content[place] ^= 1 << (place % 8)
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [flip, truncate, remove, empty])
@pytest.mark.parametrize("name", ["__0_00.distcp", "__1_10.distcp", "commit.json", ".metadata"])
def test_harm_to_any_file_is_found_and_the_checkpoint_before_is_used(
    two: World, good: Path, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(good, folder)
    harm(folder / "step-4" / name)
    results = two.run(train, folder=str(folder), run_id="harmed", until=3, mode="sync", every=2)
    for result in results:
        assert (result["from"], result["source"]) == (2, "storage")
    aside = [fields for _, event, fields in results[0]["lines"] if "set aside" in event]
    assert aside[0]["step"] == 4 and name in aside[0]["reason"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-3", "step-4.damaged-1"]


def test_a_copy_under_another_step_s_name_is_set_aside(two: World, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(good, folder)
    shutil.copytree(folder / "step-4", folder / "step-7")
    results = two.run(train, folder=str(folder), run_id="copied", until=5, mode="sync", every=2)
    assert [(result["from"], result["source"]) for result in results] == [(4, "storage")] * 2
    aside = [fields for _, event, fields in results[0]["lines"] if "set aside" in event]
    assert [one["reason"] for one in aside] == ["step-7 holds the record of step 4"]
    assert (folder / "step-7.damaged-1").is_dir()


def test_a_file_in_the_place_of_a_checkpoint_to_come_ends_the_start(
    two: World, good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(good, folder)
    (folder / "step-6").touch()
    for result in two.run(attempt, folder=str(folder), run_id="file", until=6, mode="sync", every=2):
        assert result["code"] == ExitCode.BAD_RECIPE
        assert str(folder / "step-6") in result["error"]
    remove_leftovers(named("file"))


def test_sizes_alone_find_a_truncation(two: World, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "c")
    truncate(tmp_path / "c" / "step-4" / "__1_00.distcp")
    (result, _) = two.run(
        train, folder=str(tmp_path / "c"), run_id="sizes", until=3, mode="sync", verify="size"
    )
    assert result["from"] == 2


def test_where_none_loads_the_run_stops_and_overwrites_nothing(
    two: World, good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(good, folder)
    for step in (2, 4):
        flip(folder / f"step-{step}" / "__0_00.distcp")
    for _ in range(2):  # the second run finds them set aside already, and must not start over either
        for result in two.run(attempt, folder=str(folder), run_id="none", until=6, mode="sync"):
            assert result["code"] == ExitCode.NO_LOADABLE_CHECKPOINT
            assert "step-2.damaged-1" in result["error"] and "step-4.damaged-1" in result["error"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-2.damaged-1", "step-4.damaged-1"]
    remove_leftovers(named("none"))


class Trap:
    """Pickles into a call that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def reseal(folder: Path) -> None:
    """Make the record agree with tampered files, as an attacker would."""
    import hashlib

    import xxhash

    record = json.loads((folder / "commit.json").read_text())["record"]
    for file in record["files"]:
        content = (folder / file["name"]).read_bytes()
        file |= {"size": len(content), "xxh3_128": xxhash.xxh3_128(content).hexdigest()}
    body = json.dumps(record, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    (folder / "commit.json").write_text(f'{{"sha256":"{digest}","record":{body}}}\n')


def test_a_tampered_checkpoint_is_never_executed(two: World, good: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "c", tmp_path / "mark"
    shutil.copytree(good, folder)
    bomb = pickle.dumps(Trap(mark))
    pickle.loads(bomb)
    assert mark.exists()  # the trap works
    mark.unlink()
    step = folder / "step-4"
    (step / ".metadata").write_bytes(bomb)
    target = step / "__0_00.distcp"
    target.write_bytes(target.read_bytes() + bomb)  # a whole replacement would fail by size alone
    reseal(step)
    record = json.loads((step / "commit.json").read_text())["record"]
    assert record["step"] == 4
    results = two.run(train, folder=str(folder), run_id="bomb", until=6, mode="sync")
    assert results[0]["from"] == 4 and not mark.exists()


@pytest.mark.parametrize("name", ["../../escape.distcp", "/etc/passwd", "__0_0.distcp/../x"])
def test_a_record_that_points_elsewhere_is_damage(two: World, good: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "c"
    shutil.copytree(good, folder)
    record = folder / "step-4" / "commit.json"
    body = json.loads(record.read_text())["record"]
    body["files"][0]["name"] = name
    import hashlib

    text = json.dumps(body, separators=(",", ":"))
    record.write_text(f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}","record":{text}}}\n')
    results = two.run(train, folder=str(folder), run_id="escape", until=3, mode="sync")
    assert results[0]["from"] == 2
