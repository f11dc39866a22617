"""Files of a run that are damaged, lost or not ours: they are left aside, and the run goes on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.launch.control import Control
from runner.launch.earlier import decisive
from runner.launch.outcome import Outcome, OutcomeReader, outcome_folder, write_outcome
from runner.launch.run_folder import RunFolder
from runner.recipe.load import load_recipe
from runner.recipe.resolve import resolve


@pytest.mark.parametrize("content", ["", "[]", "{", '{"steps": "x"}', '{"steps": null}', "\x00"])
def test_a_damaged_mark_of_the_end_counts_as_none(tmp_path: Path, content: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    with contextlib.closing(RunFolder(resolve(load_recipe(recipe).recipe, cwd=tmp_path), 0)) as folder:
        folder.mark_finished()
        (folder.path / "finished.json").write_text(content)
        (folder.path / "recipe.yaml").write_bytes(b"\xff\xfe damaged")
        assert not folder.finished()
        assert folder.write_recipe().read_text(encoding="utf-8").startswith("name:")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"exit_code": 0, "strange": 1}'])
def test_a_file_that_is_no_outcome_is_left_aside(tmp_path: Path, content: str) -> None:
    reader = OutcomeReader(tmp_path)
    (outcome_folder(tmp_path) / "strange.json").write_text(content)
    write_outcome(tmp_path, Outcome(exit_code=12, message="no progress", rank=1, step=3, attempt="a"))
    assert [outcome.rank for outcome in reader.outcomes()] == [1]
    found = decisive(tmp_path, Control(None), frozenset())
    assert found is not None and found.exit_code == 12


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
