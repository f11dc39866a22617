"""A folder of checkpoints belongs to one run: while it lives, by a lock; afterwards, by a note."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from recipes_for_tests import tiny

from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.listing import list_checkpoints
from runner.errors import ExitCode, InputError, RunError
from runner.launch.run_folder import RunFolder


@contextlib.contextmanager
def started(
    run: Path, checkpoints: Path, *, name: str = "tiny", node: int = 0, patience: float = 0.0
) -> Iterator[RunFolder]:
    """A run up to where its launcher would be started."""
    recipe = tiny(name=name, output={"folder": str(run)}, checkpoint={"folder": str(checkpoints)})
    with contextlib.closing(RunFolder(recipe, node, patience=patience)) as folder:
        folder.claim_checkpoints()
        folder.write_recipe()
        yield folder


def start(run: Path, checkpoints: Path, *, name: str = "tiny", node: int = 0) -> None:
    with started(run, checkpoints, name=name, node=node):
        pass


def owner(checkpoints: Path) -> str:
    return json.loads((checkpoints / "owner.json").read_text())["run_folder"]


def test_a_second_live_run_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with started(tmp_path / "a", shared):
        (shared / "owner.json").unlink()  # handed over too early: the lock still says no
        says = rf"{shared} is in use by another nvrx-run \(process \d+ on .*, run folder {tmp_path}/a\); give this"
        with pytest.raises(RunError, match=says) as refused:
            start(tmp_path / "b", shared)
        assert refused.value.exit_code == ExitCode.BAD_RECIPE
        with pytest.raises(RunError, match="in use") as held, started(tmp_path / "b", shared, patience=0.1):
            pass
        assert held.value.exit_code == ExitCode.CRASHED  # in a pod: the next one may find it free
    start(tmp_path / "b", shared)


def test_checkpoints_of_another_run_are_refused_until_they_are_handed_over(tmp_path: Path) -> None:
    shared = tmp_path / "a" / "checkpoints"
    start(tmp_path / "a", shared)
    start(tmp_path / "a", shared, name="renamed")
    for node in (0, 1):
        with pytest.raises(
            InputError, match=f"{shared} belongs to run tiny-.* in {tmp_path}/a, .*; name another"
        ):
            start(tmp_path / "b", shared, node=node)
    (shared / "owner.json").unlink()
    start(tmp_path / "b", shared)
    with pytest.raises(InputError, match=f"in {tmp_path}/b, and .* remove {shared}/owner.json to hand"):
        start(tmp_path / "a", shared, name="renamed")


def test_a_note_that_says_nothing_is_named(tmp_path: Path) -> None:
    for content in ("", "[]", '{"run_id": 1, "run_folder": "x"}'):
        (tmp_path / "owner.json").write_text(content)
        with pytest.raises(InputError, match=r"owner\.json does not say whose"):
            start(tmp_path / "a", tmp_path)


def test_a_run_that_is_moved_or_whose_start_is_damaged_keeps_its_checkpoints(tmp_path: Path) -> None:
    for inside in (True, False):
        first, second = tmp_path / f"a{inside}", tmp_path / f"b{inside}"
        there, here = (
            (run / "checkpoints" if inside else tmp_path / "checkpoints") for run in (first, second)
        )
        start(first, there)
        first.rename(second)
        with started(second, here, node=1):  # whichever node is first
            start(second, here)
        assert owner(here) == str(second)
        start(second, here)
        (second / "run.json").write_text("{")
        with pytest.raises(InputError, match="belongs to"):
            start(second, here)
        (here / "owner.json").unlink()
        start(second, here)


def test_a_copy_of_a_run_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    start(tmp_path / "a", tmp_path / "a" / "checkpoints")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match=f"and this is a copy of it in {tmp_path}/b; name another"):
        start(tmp_path / "b", tmp_path / "a" / "checkpoints")
    start(tmp_path / "b", tmp_path / "b" / "checkpoints")
    start(tmp_path / "a", tmp_path / "a" / "checkpoints")


def test_only_the_first_node_writes_and_a_same_note_is_written_once(tmp_path: Path) -> None:
    start(tmp_path / "a", tmp_path / "c", node=1)
    assert not (tmp_path / "c").exists()
    start(tmp_path / "a", tmp_path / "c")
    before = (tmp_path / "c" / "owner.json").stat()
    start(tmp_path / "a", tmp_path / "c")
    after = (tmp_path / "c" / "owner.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_note_is_no_checkpoint(tmp_path: Path) -> None:
    start(tmp_path / "a", tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [".lock", "owner.json"]
    folder = CheckpointFolder(tmp_path / "c")
    assert (folder.entries(), folder.sweep()) == ([], ([], []))
    recipe = tiny(output={"folder": str(tmp_path / "a")}, checkpoint={"folder": str(tmp_path / "c")})
    assert list_checkpoints(recipe) == f"no checkpoints in {tmp_path}/c"
