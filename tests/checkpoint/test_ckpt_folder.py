"""Names, commit records and retention, without ranks or torch."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.checkpoint import folder as folder_module
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.listing import list_checkpoints
from runner.checkpoint.record import CommitRecord, Damaged, looks_whole, read_record, write_record
from runner.checkpoint.shm import remove_leftovers
from runner.errors import InputError
from runner.recipe.checkpoint import CheckpointSection
from runner.recipe.recipe import Recipe
from runner.system import durable
from runner.system.durable import write_durably


def commit(root: Path, step: int) -> None:
    folder = CheckpointFolder(root)
    partial = folder.partial(step, "t-1")
    partial.mkdir(parents=True)
    (partial / "__0_00.distcp").write_bytes(b"x" * step)
    file = {"name": "__0_00.distcp", "size": step, "xxh3_128": "", "items": []}
    write_record(partial, CommitRecord(step, 2, "f", time.time() - 3700, "sync", {}, [file], {}, [{}, {}]))
    folder.commit(partial, step)


def steps(root: Path) -> list[int]:
    return [entry.step for entry in CheckpointFolder(root).committed()]


def test_retention_keeps_the_newest_and_the_multiples(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100, 105, 110, 1000):
        commit(tmp_path, step)
    done = CheckpointFolder(tmp_path).retain(2, 100, lambda entry: True)
    assert steps(tmp_path) == [100, 110, 1000] and done == ([5, 10, 15, 105], [])


def test_retention_never_deletes_the_last_usable_one(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        commit(tmp_path, step)
    folder = CheckpointFolder(tmp_path)
    folder.retain(1, None, lambda entry: entry.step <= 2)
    assert steps(tmp_path) == [2, 4]
    assert folder.retain(1, None, lambda entry: False) == ([], [])
    assert steps(tmp_path) == [2, 4]


def test_a_deletion_cut_short_is_finished_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        commit(tmp_path, step)
    folder = CheckpointFolder(tmp_path)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.delete(folder.committed()[0])
    assert steps(tmp_path) == [2]  # what is half gone no longer looks like a checkpoint
    assert folder.sweep() == ([tmp_path / "step-1.deleting"], [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_step_is_never_committed_over_another(tmp_path: Path) -> None:
    commit(tmp_path, 3)
    before = (tmp_path / "step-3" / "commit.json").read_bytes()
    with pytest.raises(OSError, match="step-3"):
        commit(tmp_path, 3)
    assert (tmp_path / "step-3" / "commit.json").read_bytes() == before


def test_a_durable_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(tmp_path / "a", "first")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "a", b"second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "first")]


def test_every_flipped_byte_of_a_record_is_found(tmp_path: Path) -> None:
    commit(tmp_path, 7)
    path = tmp_path / "step-7" / "commit.json"
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(Damaged):
            read_record(tmp_path / "step-7")
    path.write_bytes(good)
    assert read_record(tmp_path / "step-7").step == 7


def test_a_folder_that_holds_another_step_s_record_is_damaged(tmp_path: Path) -> None:
    for step in (5, 6):
        commit(tmp_path, step)
    shutil.copytree(tmp_path / "step-5", tmp_path / "step-12")
    with pytest.raises(Damaged, match=r"^step-12 holds the record of step 5$"):
        read_record(tmp_path / "step-12")
    row = list_checkpoints(recipe(tmp_path)).splitlines()[-1]
    assert row.startswith("12") and "no: step-12 holds the record of step 5" in row
    CheckpointFolder(tmp_path).retain(1, None, lambda entry: looks_whole(entry.path))
    assert steps(tmp_path) == [6, 12], "step 6 is the newest that can be used"
    read_record(CheckpointFolder(tmp_path).set_aside(6))


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_folder_and_has_a_checkpoint_s_name_is_refused_at_the_start(
    tmp_path: Path, link: bool
) -> None:
    commit(tmp_path, 5)
    (tmp_path / "step-6").symlink_to(tmp_path / "step-5")
    CheckpointFolder(tmp_path).prepare()  # a link to a folder is one
    wrong = tmp_path / "step-7"
    if link:
        wrong.symlink_to(tmp_path / "gone")
    else:
        wrong.touch()
    with pytest.raises(InputError, match=f"^checkpoint.folder: {wrong} is .* move it away$"):
        CheckpointFolder(tmp_path).prepare()
    row = list_checkpoints(recipe(tmp_path)).splitlines()[-1]
    assert row.startswith("7") and "no: not a folder" in row and row.endswith(str(wrong))


def recipe(root: Path) -> Recipe:
    return Recipe.model_construct(
        name="x", checkpoint=CheckpointSection(every=1, folder=str(root)), output=None
    )  # the listing asks for the folder alone


def test_the_listing_shows_every_state(tmp_path: Path) -> None:
    assert list_checkpoints(recipe(tmp_path / "none")) == f"no checkpoints in {tmp_path / 'none'}"
    for step in (9, 10, 11):
        commit(tmp_path, step)
    (tmp_path / "step-11" / "__0_00.distcp").write_bytes(b"")
    CheckpointFolder(tmp_path).set_aside(9)
    (tmp_path / "step-12.abc-1.partial").mkdir()
    lines = [line.split() for line in list_checkpoints(recipe(tmp_path)).splitlines()]
    assert lines[0][:6] == ["step", "state", "age", "size", "ranks", "verified"]
    text = [" ".join(line) for line in lines[1:]]
    assert text[0].startswith("9 set aside 1 h 9 B 2 -")
    assert text[1].startswith("10 committed 1 h 10 B 2 sizes")
    assert text[2].startswith("11 damaged 1 h 11 B 2 no: __0_00.distcp has 0 bytes, the record says 11")
    assert text[3].startswith("12 unfinished 0 s 0 B - -")


def test_the_listing_shows_the_rest_beside_a_strange_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        commit(tmp_path, step)
    (tmp_path / "step-1" / "commit.json").unlink()
    (tmp_path / "step-1" / "commit.json").mkdir()
    (tmp_path / "step-4").write_text("a file")
    commit(tmp_path, 5)
    real, real_is_dir = Path.read_bytes, Path.is_dir

    def unwell(path: Path) -> bool:
        if path.name == "step-5":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real_is_dir(path)

    def denied(path: Path) -> bytes:
        if path.parent.name == "step-2":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    monkeypatch.setattr(Path, "is_dir", unwell)
    text = [" ".join(line.split()) for line in list_checkpoints(recipe(tmp_path)).splitlines()[1:]]
    assert text[0].startswith("1 damaged 0 s 1 B - no: commit.json is not a file")
    assert "cannot be read: Permission denied" in text[1]
    assert text[2].startswith("3 committed 1 h 3 B 2 sizes")
    assert text[3].startswith("4 - 0 s 6 B - no: not a folder")
    assert text[4].startswith("5 committed - - - cannot be read: Input/output error")


def test_listing_and_clean_up_need_no_torch(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    program = (
        "import sys; import runner.checkpoint.listing, runner.checkpoint.shm, runner.checkpoint.folder as f;"
        f"assert f.CheckpointFolder(__import__('pathlib').Path({str(tmp_path)!r})).committed();"
        "bad = {'torch', 'xxhash', 'numpy', 'nvidia_resiliency_ext'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_only_the_arenas_of_that_run_are_removed() -> None:
    shm = Path("/dev/shm")
    mine, other = shm / "nvrx-unit-x-arena-0", shm / "nvrx-unit-x-y-arena-0"
    try:
        for path in (mine, other):
            path.touch()
        assert remove_leftovers("unit-x") == [mine]
        assert other.exists()
    finally:
        for path in (mine, other):
            path.unlink(missing_ok=True)


def test_a_read_only_parent_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        CheckpointFolder(tmp_path / "file" / "below").prepare()
    shutil.rmtree(tmp_path)


def test_a_folder_whose_number_is_written_otherwise_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("step-000000030", "step-01", "step-"):
        (tmp_path / name).mkdir()
    assert CheckpointFolder(tmp_path).entries() == []
