"""Damaged checkpoints: found, set aside, the one before used, never executed. What cannot be read is none of them."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ckpt_world import Rank, World, attempt, named, train

from runner.checkpoint import loader, patience
from runner.checkpoint.contradiction import OwnRun
from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode


@pytest.fixture(scope="module")
def good(two: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    two.run(train, folder=str(folder), run_id="good", until=4, mode="sync", every=2)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """Checkpoints of steps 2 and 4, to be harmed."""
    return shutil.copytree(good, tmp_path / "c")


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
    two: World, folder: Path, name: str, harm: Callable[[Path], None]
) -> None:
    harm(folder / "step-4" / name)
    results = two.run(train, folder=str(folder), run_id="harmed", until=3, mode="sync", every=2)
    for result in results:
        assert (result["from"], result["source"]) == (2, "storage")
    aside = [fields for _, event, fields in results[0]["lines"] if "set aside" in event]
    assert aside[0]["step"] == 4 and name in aside[0]["reason"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-3", "step-4.damaged-1"]


def test_a_copy_under_another_step_s_name_is_set_aside(two: World, folder: Path) -> None:
    shutil.copytree(folder / "step-4", folder / "step-7")
    results = two.run(train, folder=str(folder), run_id="copied", until=5, mode="sync", every=2)
    assert [(result["from"], result["source"]) for result in results] == [(4, "storage")] * 2
    aside = [fields for _, event, fields in results[0]["lines"] if "set aside" in event]
    assert [one["reason"] for one in aside] == ["step-7 holds the record of step 4"]
    assert (folder / "step-7.damaged-1").is_dir()


def test_a_file_in_the_place_of_a_checkpoint_to_come_ends_the_start(two: World, folder: Path) -> None:
    (folder / "step-6").touch()
    for result in two.run(attempt, folder=str(folder), run_id="file", until=6, mode="sync", every=2):
        assert result["code"] == ExitCode.BAD_RECIPE
        assert str(folder / "step-6") in result["error"]
    remove_leftovers(named("file"))


def test_sizes_alone_find_a_truncation(two: World, folder: Path) -> None:
    truncate(folder / "step-4" / "__1_00.distcp")
    (result, _) = two.run(train, folder=str(folder), run_id="sizes", until=3, mode="sync", verify="size")
    assert result["from"] == 2


def test_where_none_loads_the_run_stops_and_overwrites_nothing(two: World, folder: Path) -> None:
    for step in (2, 4):
        flip(folder / f"step-{step}" / "__0_00.distcp")
    for _ in range(2):  # the second run finds them set aside already, and must not start over either
        for result in two.run(attempt, folder=str(folder), run_id="none", until=6, mode="sync"):
            assert result["code"] == ExitCode.NO_LOADABLE_CHECKPOINT
            assert "step-2.damaged-1" in result["error"] and "step-4.damaged-1" in result["error"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-2.damaged-1", "step-4.damaged-1"]
    remove_leftovers(named("none"))


class Unwell:
    """The `os` module of whoever reads tensors, or a method of `Path`: the first `times` calls for `name` fail."""

    def __init__(self, real: Any, name: str, error: int, times: int) -> None:
        self._real, self._name, self._error, self.left = real, name, error, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def fail(self, path: Path) -> None:
        if self._name in str(path) and self.left:
            self.left -= 1
            raise OSError(self._error, os.strerror(self._error), str(path))

    def open(self, path: Path, *arguments: Any) -> int:
        self.fail(path)
        return os.open(path, *arguments)


def unwell(
    place: Rank,
    folder: str,
    run_id: str,
    sick: int,
    what: str,
    name: str,
    error: int,
    times: int,
    until: int = 5,
    run: OwnRun | None = None,
) -> dict[str, Any]:
    """`attempt`, while rank `sick` cannot open, stat, read or list the files or folders `name`."""
    failing = Unwell(os, name, error, times if place.rank == sick else 0)
    real = getattr(Path, what, None)

    def method(path: Path, *arguments: Any, **options: Any) -> Any:
        failing.fail(path)
        return real(path, *arguments, **options)  # type: ignore[misc]

    target = (
        mock.patch.object(loader, "os", failing) if real is None else mock.patch.object(Path, what, method)
    )
    with target, mock.patch.object(patience, "PAUSES", (0.01,) * 4):
        result = attempt(place, folder=folder, run_id=run_id, until=until, run=run, mode="sync")
    return result | {"unused": failing.left}


def while_unwell(
    two: World, folder: Path, times: int, sick: int, what: str, name: str, error: int, **more: Any
) -> list[dict[str, Any]]:
    how = {"times": times, "sick": sick, "what": what, "name": name, "error": error, **more}
    results = two.run(unwell, folder=str(folder), run_id="unwell", **how)
    remove_leftovers(named("unwell"))
    return results


SICK = [
    (1, "os.open", "step-4/__1_00", errno.EIO),
    (0, "os.open", "step-4/__0_00", errno.EACCES),
    (1, "stat", "step-4/", errno.ESTALE),
    (0, "read_bytes", "step-4/commit.json", errno.EACCES),
    (0, "iterdir", "/c", errno.ENOTCONN),
    (1, "stat", "step-4", errno.ENOENT),  # rank 0 sees the folder
]


@pytest.mark.parametrize(("sick", "what", "name", "error"), SICK)
def test_what_the_system_cannot_read_stops_all_ranks_and_renames_nothing(
    two: World, folder: Path, sick: int, what: str, name: str, error: int
) -> None:
    results = while_unwell(two, folder, 1000, sick, what, name, error)
    for result in results:
        assert result["code"] == ExitCode.SAVE_FAILED
        text = result["error"]
        assert os.strerror(error) in text and name in text and "nothing is set aside" in text
        assert "\n" not in text and (f"rank {sick} (" in text or what == "iterdir")
    calls = 2 if error == errno.ENOENT else 1  # of each of 5 attempts
    assert results[sick]["unused"] == 1000 - 5 * calls
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-4"]


@pytest.mark.parametrize(("sick", "what", "name", "error"), SICK[:5])
def test_a_read_error_that_passes_costs_nothing(
    two: World, folder: Path, sick: int, what: str, name: str, error: int
) -> None:
    results = while_unwell(two, folder, 3, sick, what, name, error)
    assert [(result["from"], result["unused"]) for result in results] == [(4, 0)] * 2
    told = [
        fields for _, event, fields in results[sick]["lines"] if event.startswith("storage cannot be read")
    ]
    assert [fields["reason"] for fields in told] == [os.strerror(error)] * 3


@pytest.mark.parametrize(
    ("sick", "file"), [(1, "step-4/__1_00.distcp"), (0, "step-4/__1_00.distcp"), (0, "step-4/commit.json")]
)
def test_a_file_that_one_rank_alone_does_not_see_is_no_damage(
    two: World, folder: Path, sick: int, file: str
) -> None:
    for result in while_unwell(two, folder, 1000, sick, "stat", file, errno.ENOENT):
        assert result["code"] == ExitCode.SAVE_FAILED
        assert f"rank {sick} (" in result["error"] and "\n" not in result["error"]
        said = f"finds that {folder}/{file} is missing, and rank {1 - sick} does not; nothing is set aside"
        assert said in result["error"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-4"]


@pytest.mark.parametrize("times", [3, 1000])
def test_a_lowered_end_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    two: World, folder: Path, tmp_path: Path, times: int
) -> None:
    how = {"sick": 0, "what": "stat", "name": "step-2/__0_00", "error": errno.EIO, "until": 4}
    results = while_unwell(two, folder, times, run=OwnRun(tmp_path / "run", steps=2), **how)
    if times == 3:  # it passes
        assert [result["from"] for result in results] == [4, 4]
        return
    for result in results:
        assert result["code"] == ExitCode.SAVE_FAILED
        assert f"cannot read {folder}/step-2/__0_00" in result["error"]
        assert "Input/output error; nothing is set aside" in result["error"]


def test_a_rank_0_that_does_not_see_the_checkpoints_does_not_start_anew(
    two: World, good: Path, tmp_path: Path
) -> None:
    for result in two.run(apart, folder=str(good), empty=str(tmp_path / "not-mounted"), run_id="apart"):
        assert result["code"] == ExitCode.SAVE_FAILED
        assert "rank 0 (" in result["error"] and "does not see" in result["error"]
        assert "step-4, rank 1 (" in result["error"]
    remove_leftovers(named("apart"))


def apart(place: Rank, folder: str, empty: str, run_id: str) -> dict[str, Any]:
    """Rank 0 has an empty folder where the others have their checkpoints."""
    return attempt(place, folder=folder if place.rank else empty, run_id=run_id, until=1, mode="sync")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("commit.json", as_folder),
        ("commit.json", as_pipe),
        ("__1_00.distcp", as_folder),
        ("__1_00.distcp", as_loop),
    ],
)
def test_what_is_no_file_is_damage(two: World, folder: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(folder / "step-4" / name)
    results = two.run(train, folder=str(folder), run_id="strange", until=3, mode="sync")
    assert [result["from"] for result in results] == [2, 2]
    assert (folder / "step-4.damaged-1").exists()


class Trap:
    """Pickles into a call that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def reseal(folder: Path, **changes: Any) -> None:
    """Make the record agree with tampered files, as an attacker would; `changes` are made in it."""
    import hashlib

    import xxhash

    record = json.loads((folder / "commit.json").read_text())["record"]
    for file in record["files"]:
        content = (folder / file["name"]).read_bytes()
        file |= {"size": len(content), "xxh3_128": xxhash.xxh3_128(content).hexdigest()}
    body = json.dumps(record | changes, separators=(",", ":"))
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


def test_a_checkpoint_of_a_later_version_is_read_or_left_alone(two: World, folder: Path) -> None:
    step = folder / "step-4"
    reseal(step, later=1)
    results = two.run(train, folder=str(folder), run_id="later", until=4, mode="sync")
    assert results[0]["from"] == 4
    reseal(step, format=2)
    for result in two.run(attempt, folder=str(folder), run_id="format", until=6, mode="sync"):
        assert (
            result["code"] == ExitCode.BAD_RECIPE
            and "is another version's: commit.json has format 2" in result["error"]
        )
    assert step.is_dir()
    remove_leftovers(named("format"))


@pytest.mark.parametrize("name", ["../../escape.distcp", "/etc/passwd", "__0_0.distcp/../x"])
def test_a_record_that_points_elsewhere_is_damage(two: World, folder: Path, name: str) -> None:
    record = folder / "step-4" / "commit.json"
    body = json.loads(record.read_text())["record"]
    body["files"][0]["name"] = name
    import hashlib

    text = json.dumps(body, separators=(",", ":"))
    record.write_text(f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}","record":{text}}}\n')
    results = two.run(train, folder=str(folder), run_id="escape", until=3, mode="sync")
    assert results[0]["from"] == 2
