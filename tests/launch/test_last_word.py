"""A worker says what it ended with although the run's folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.control.channel import Control
from runner.control.earlier import decisive
from runner.control.lastword import ROOM, LastWord
from runner.control.outcome import Outcome, OutcomeReader, write_outcome
from runner.control.signs import WorkerSign
from runner.errors import ExitCode
from runner.launch.watch.deaths import Deaths

OUTCOME = Outcome(int(ExitCode.SAVE_FAILED), "the save failed \N{SNOWMAN}", rank=1, step=3, attempt="a")


def unwritable(run: Path) -> None:
    """A file where the folder of outcomes and of records should be (root writes into any folder)."""
    for name in ("outcome", "faults"):
        if (run / name).is_dir():
            (run / name).rmdir()
        (run / name).write_text("")


@pytest.fixture
def control(tmp_path: Path) -> Path:
    folder = tmp_path / "control"
    folder.mkdir()
    return folder


def test_what_cannot_go_into_the_runs_folder_is_read_from_the_reserved_room(
    tmp_path: Path, control: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    reader = OutcomeReader(run, control)
    word = LastWord(control)
    (reserved,) = (control / "words").iterdir()
    assert reserved.stat().st_blocks * 512 >= ROOM
    assert reader.outcomes() == []
    (run / "outcome").rename(run / "hidden")
    (run / "outcome").write_text("")
    write_outcome(run, OUTCOME, word)
    word.close()
    (run / "outcome").unlink()
    (run / "hidden").rename(run / "outcome")
    assert reader.outcomes() == [OUTCOME]
    assert reserved.stat().st_size == ROOM, "its blocks stayed where they were"
    assert decisive(run, Control(control), frozenset()) == OUTCOME
    assert OutcomeReader(run, control).outcomes() == [], "of an earlier launch"


def test_an_outcome_that_does_not_fit_goes_without_its_traceback(tmp_path: Path, control: Path) -> None:
    unwritable(tmp_path)
    long = Outcome(1, "\N{SNOWMAN}" * 5000, rank=0, step=1, attempt="a", traceback="line\n" * 5000)
    write_outcome(tmp_path, long, LastWord(control))
    (tmp_path / "run").mkdir()
    found = decisive(tmp_path / "run", Control(control), frozenset())
    assert found is None  # a crash decides nothing
    (text,) = [path.read_bytes().rstrip(b"\0") for path in (control / "words").iterdir()]
    assert 1000 < len(text) < ROOM and b"line" not in text


def test_reserved_room_goes_when_nothing_had_to_be_said(control: Path) -> None:
    LastWord(control).close()
    assert list((control / "words").iterdir()) == []


def test_where_nothing_is_reserved_the_error_stays_an_error(tmp_path: Path) -> None:
    unwritable(tmp_path)
    for word in (None, LastWord(None), LastWord(tmp_path / "absent")):
        with pytest.raises(OSError):
            write_outcome(tmp_path, OUTCOME, word)


def test_a_death_that_cannot_be_recorded_is_still_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unwritable(tmp_path)
    log = tmp_path / "log"
    log.write_bytes(b"")
    deaths = Deaths(log, tmp_path, "none")
    sign = WorkerSign(pid=1, rank=2, local_rank=0, restart=0, attempt="a", step=7)
    deaths.expect(sign, [])
    log.write_bytes(
        b"failed (exitcode: -9) local_rank: 0 (pid: 1) of binary"
    )  # ahead of the look that misses it
    assert deaths.add(sign, []) is not None
    deaths.settle(finally_=True)
    assert str(deaths.all[0]) == "rank 2 died (SIGKILL)"
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot be written" in said
