"""Files of a run that are damaged, lost or not ours: they are left aside, and the run goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.checkpoint import record as checkpoint_record
from runner.control.channel import Control
from runner.control.earlier import decisive
from runner.control.outcome import Outcome, OutcomeReader, outcome_folder, write_outcome
from runner.control.silence import hung_ranks
from runner.errors import InputError
from runner.faults.records import FaultRecord, read_records, write_record
from runner.faults.schedule import schedule_text
from runner.launch.run_folder import RunFolder
from runner.recipe.load import load_recipe
from runner.recipe.resolve import resolve
from runner.system.process import children_by_parent, process_name


@pytest.mark.parametrize("content", [
    "", "[]", "{", '{"steps": "x"}', '{"steps": null}', '{"steps": 1e999}', '{"steps": NaN}', "[" * 100_000, "\x00",
])  # fmt: skip
def test_a_damaged_mark_of_the_end_counts_as_none(tmp_path: Path, content: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    with contextlib.closing(RunFolder(resolve(load_recipe(recipe).recipe, cwd=tmp_path), 0)) as folder:
        folder.mark_finished()
        (folder.path / "finished.json").write_text(content)
        (folder.path / "recipe.yaml").write_bytes(b"\xff\xfe damaged")
        assert not folder.finished()
        assert folder.write_recipe().read_text(encoding="utf-8").startswith("name:")


def test_a_run_is_finished_only_while_the_checkpoint_of_its_end_is_whole(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    resolved = resolve(load_recipe(recipe).recipe, cwd=tmp_path)
    end = resolved.training.steps
    last = resolved.checkpoint_folder / f"step-{end}"
    with contextlib.closing(RunFolder(resolved, 0)) as folder:
        folder.mark_finished()
        assert not folder.finished(), "nothing there"
        last.mkdir(parents=True)
        assert not folder.finished(), "no commit record"
        (last / "__0_00.distcp").write_bytes(b"12345678")
        file = {"name": "__0_00.distcp", "size": 8, "xxh3_128": "", "items": []}
        record = checkpoint_record.CommitRecord(end, 1, "", 0.0, "sync", {}, [file], {})
        checkpoint_record.write_record(last, replace(record, step=end - 1))
        assert not folder.finished(), "another step's"
        checkpoint_record.write_record(last, record)
        assert folder.finished().startswith(f"finished already: {last} is there, nothing to do")
        os.truncate(last / "__0_00.distcp", 7)
        assert not folder.finished(), "cut short"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"exit_code": 0, "strange": 1}', "[" * 100_000])
def test_a_file_that_is_no_outcome_is_left_aside(tmp_path: Path, content: str) -> None:
    reader = OutcomeReader(tmp_path)
    (outcome_folder(tmp_path) / "strange.json").write_text(content)
    write_outcome(tmp_path, Outcome(exit_code=12, message="no progress", rank=1, step=3, attempt="a"))
    assert [outcome.rank for outcome in reader.outcomes()] == [1]
    found = decisive(tmp_path, Control(None), frozenset())
    assert found is not None and found.exit_code == 12


@pytest.mark.parametrize("name", ["logs", "outcome", "faults", "ledger", "data"])
def test_a_file_where_a_run_keeps_a_folder_is_named(tmp_path: Path, name: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("")
    with pytest.raises(
        InputError, match=f"/run/{name} is a file, and a run keeps a folder there; move it away"
    ):
        RunFolder(resolve(load_recipe(recipe).recipe, cwd=tmp_path), 0)


@pytest.mark.parametrize("place", ["run", "run/folder"])
def test_a_file_where_the_run_s_own_folder_should_be_is_named(tmp_path: Path, place: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path / place, "none"))
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match=f"^{tmp_path}/run is a file, and a run keeps a folder there"):
        RunFolder(resolve(load_recipe(recipe).recipe, cwd=tmp_path), 0)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff", b'{"kind": "died"}', b"[" * 100_000,
    (b'"rank": 1', b'"rank": "1"'), (b'"rank": 1', b'"rank": NaN'), (b'"time": ', b'"time": 1e300, "x": '),
    (b'"time": ', b'"time": 1e30'), (b'"time": ', b'"time": -'),
])  # fmt: skip
def test_damaged_records_of_faults_are_left_out_and_named(
    tmp_path: Path, content: bytes | tuple[bytes, bytes]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    faults = {
        "at": [{"step": 3, "rank": 0, "type": "exception"}, {"step": 5, "rank": 1, "type": "exception"}]
    }
    recipe.write_text(recipe_text(tmp_path, "none", faults=faults))
    run = tmp_path / "run"
    kept = write_record(run, FaultRecord("died", 1, 3, "none", "a", "rank 1 died"))
    if isinstance(content, tuple):
        content = kept.read_bytes().replace(*content)
    (run / "faults" / "damaged.json").write_bytes(content)
    (run / "faults" / "silent-rank.txt").write_bytes(content)
    fired = run / "faults" / "fired" / "step-3-exception-rank-0-step.json"
    fired.parent.mkdir()
    fired.write_bytes(content)
    text = schedule_text(load_recipe(recipe).recipe)
    assert "planned faults (2, 1 fired)" in text
    assert "faults that happened (1)" in text
    assert text.endswith(f"left out, for it is damaged: {run}/faults/damaged.json")
    assert [record.rank for record in read_records(run)] == [1]
    assert hung_ranks(run, 10, 1e12) == []


def test_a_record_of_a_path_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    write_record(tmp_path, FaultRecord("exception", 1, 3, "none", "a", "OSError: /runs/\udcff"))
    assert [record.what for record in read_records(tmp_path)] == ["OSError: /runs/\\udcff"]


def test_processes_whose_names_are_no_text_are_seen_like_all_others(tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff\xfe) x"
    shutil.copy(b"/bin/sleep", strange)
    with subprocess.Popen([strange, "60"]) as process:
        try:
            assert process.pid in children_by_parent()[os.getpid()]
            assert process_name(process.pid)
        finally:
            process.kill()


def test_whoever_writes_a_log_file_appends_to_it(tmp_path: Path) -> None:
    """The shell's `> log 2>&1`: one offset for both, and none for those that opened the file themselves."""
    log = tmp_path / "log"
    program = (
        "import os, sys\n"
        "from runner.launch.terminal import append_to_files\n"
        "append_to_files()\n"
        f"rank = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND)\n"
        "os.write(rank, b'step 1\\n')\n"
        "os.write(2, b'nvrx-run: SIGTERM\\n')\n"
        "os.write(1, b'summary\\n')\n"
    )
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, stderr=file, check=True)
    assert log.read_text().splitlines() == ["step 1", "nvrx-run: SIGTERM", "summary"]
