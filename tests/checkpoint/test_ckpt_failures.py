"""Saves that fail or hang: told on every rank, within a bound, with step and path; then stop or go on by policy."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ckpt_world import Rank, Recorder, Trainer, World, attempt, manager, named, wait_for_writer, writer_pid

from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode, RunError
from runner.ledger.events import SaveCommitted, SaveFailed


def observed(
    place: Rank, folder: str, run_id: str, until: int, trouble: str = "", pause: float = 0.02, **settings: Any
) -> dict[str, Any]:
    """Train slowly; rank 1's writer gets `trouble` before step 3; returns what this rank was told and when."""
    recorder = Recorder()
    life = place.life()
    trainer = Trainer(life, width=settings.pop("width", 13))
    checkpointer = manager(folder, recorder, run_id, **settings)
    error = None
    began = told = time.monotonic()
    undo = None
    try:
        checkpointer.attach(life, trainer.state)
        checkpointer.restore()
        wait_for_writer(checkpointer._writing)
        while trainer.state.step < until:
            if trainer.state.step <= 2:
                began = told = time.monotonic()
            if trainer.state.step == 2 and place.rank == 1 and trouble not in ("", "full"):
                undo = _make_trouble(checkpointer, trouble, Path(folder))
            trainer.step(checkpointer)
            time.sleep(pause)
            if not recorder.of(SaveFailed):
                told = time.monotonic()
            elif trouble == "full" and place.rank == 1:
                trouble = ""
                subprocess.run(["mount", "-o", "remount,size=200m", str(Path(folder).parent)], check=True)
        checkpointer.finish()
    except RunError as failure:
        error = {"text": str(failure), "code": int(failure.exit_code)}
    finally:
        if undo is not None:
            undo.join()
        checkpointer.close()
        remove_leftovers(named(run_id))
    return {
        "error": error,
        "seconds": told - began,
        "step": trainer.state.step,
        "committed": [event.step for event in recorder.of(SaveCommitted)],
        "failed": [(event.step, event.path, event.reason) for event in recorder.of(SaveFailed)],
        "said": [event for _, event, _ in recorder.lines],
    }


def _make_trouble(checkpointer: Any, trouble: str, folder: Path) -> threading.Thread | None:
    if trouble == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder.parent)], check=True)
        return None
    if trouble in ("replaced", "removed"):  # the save of step 3 would be the first in it
        shutil.rmtree(folder)
        if trouble == "replaced":
            folder.write_text("a file now")
        return None
    wait_for_writer(checkpointer._writing)
    pid = writer_pid()
    os.kill(pid, signal.SIGSTOP)
    if trouble == "stall":
        return None
    ending = {"kill": signal.SIGKILL, "slow": signal.SIGCONT}[trouble]
    timer = threading.Timer(1.0, os.kill, (pid, ending))
    timer.start()
    return timer


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_stops_the_run_on_every_rank(two: World, small_disk: Path, mode: str) -> None:
    results = two.run(
        observed, folder=str(small_disk / "c"), run_id=f"full{mode}", until=60, mode=mode, every=2, width=300
    )
    for result in results:
        assert result["error"]["code"] == ExitCode.SAVE_FAILED
        assert "step 2" in result["error"]["text"] and str(small_disk / "c") in result["error"]["text"]
        assert "No space left" in result["error"]["text"]
        assert result["failed"][0][0] == 2
        assert result["seconds"] < 10
    assert results[0]["step"] == results[1]["step"]  # nobody is left in a collective


def test_a_full_disk_is_told_and_training_goes_on_where_the_policy_says_so(
    two: World, small_disk: Path
) -> None:
    results = two.run(
        observed, folder=str(small_disk / "c"), run_id="goes-on", until=24, mode="async", every=4, width=300,
        on_error="continue", trouble="full",
    )  # fmt: skip
    for result in results:
        assert result["error"] is None and result["step"] == 24
        assert result["failed"][0][0] == 4 and "No space left" in result["failed"][0][2]
        assert "save failed" in result["said"]
    assert results[0]["committed"][-1] == 24
    assert not list((small_disk / "c").glob("*.partial"))  # they would hold the room that saves need


@pytest.mark.parametrize(
    ("mode", "trouble", "said"),
    [
        ("async", "read-only", "Read-only file system"),
        ("sync", "replaced", "Not a directory"),
        pytest.param("sync", "read-only", "Read-only file system", marks=pytest.mark.slow),
        pytest.param("async", "replaced", "Not a directory", marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_cannot_be_written_any_more_stops_the_run(
    two: World, small_disk: Path, mode: str, trouble: str, said: str
) -> None:
    results = two.run(
        observed, folder=str(small_disk / "c"), run_id=f"{trouble}{mode}", until=100, mode=mode, every=3,
        trouble=trouble,
    )  # fmt: skip
    for result in results:
        assert result["error"]["code"] == ExitCode.SAVE_FAILED
        text = result["error"]["text"]
        assert said in text and "step 3" in text and str(small_disk / "c") in text
        assert result["failed"][0][0] == 3 and result["seconds"] < 10
    assert results[0]["step"] == results[1]["step"]


def test_a_folder_that_is_removed_during_a_run_is_made_again(two: World, tmp_path: Path) -> None:
    results = two.run(
        observed,
        folder=str(tmp_path / "c"),
        run_id="removed",
        until=6,
        mode="async",
        every=3,
        trouble="removed",
    )
    assert results[0]["committed"] == [3, 6] and all(result["error"] is None for result in results)


@pytest.mark.parametrize("place", ["file/below", "read-only", "there, read-only"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    two: World, small_disk: Path, place: str
) -> None:
    (small_disk / "file").write_text("not a folder")
    if place.startswith("there"):
        (small_disk / place).mkdir()
    if place.endswith("read-only"):
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for result in two.run(attempt, folder=str(small_disk / place), run_id="bad", until=3, mode="sync"):
        assert result["code"] == ExitCode.BAD_RECIPE
        assert result["error"].startswith("checkpoint.folder: ") and str(small_disk) in result["error"]
    remove_leftovers(named("bad"))


def test_a_missing_folder_is_made(two: World, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    two.run(attempt, folder=str(folder), run_id="missing", until=1, mode="sync")
    assert (folder / "step-1" / "commit.json").exists()


def test_a_killed_writer_is_noticed_on_every_rank_and_replaced(two: World, tmp_path: Path) -> None:
    results = two.run(
        observed, folder=str(tmp_path), run_id="killed", until=60, mode="async", every=3, trouble="kill",
        on_error="continue", on_busy="skip", pause=0.1,
    )  # fmt: skip
    for result in results:
        assert result["error"] is None
        assert (
            result["failed"][0][0] == 3
            and "rank 1: the writer process is gone: it was killed by signal 9" in (result["failed"][0][2])
        )
        assert result["seconds"] < 10
    assert "writer process restarted" in results[1]["said"]
    assert results[0]["committed"][-1] == 60


def test_a_killed_writer_stops_the_run_by_default(two: World, tmp_path: Path) -> None:
    results = two.run(
        observed,
        folder=str(tmp_path),
        run_id="killed2",
        until=600,
        mode="async",
        every=3,
        trouble="kill",
        pause=0.1,
    )
    for result in results:
        assert result["error"]["code"] == ExitCode.SAVE_FAILED
        assert "step 3" in result["error"]["text"] and "step-3." in result["error"]["text"]
    assert results[0]["step"] == results[1]["step"]


def test_a_slow_writer_makes_saves_wait_or_be_left_out(two: World, tmp_path: Path) -> None:
    common = {"mode": "async", "every": 3, "until": 30, "trouble": "slow", "pause": 0.1}
    waited = two.run(observed, folder=str(tmp_path / "wait"), run_id="slow1", **common)
    skipped = two.run(observed, folder=str(tmp_path / "skip"), run_id="slow2", on_busy="skip", **common)
    assert waited[0]["committed"] == list(range(3, 31, 3))
    assert "save waits" in waited[0]["said"]
    assert 3 in skipped[0]["committed"] and 30 in skipped[0]["committed"]
    assert 6 not in skipped[0]["committed"] and "save left out" in skipped[0]["said"]
    assert all(result["error"] is None for result in waited + skipped)


def test_a_writer_that_stalls_for_too_long_fails_the_save(two: World, tmp_path: Path) -> None:
    results = two.run(
        observed, folder=str(tmp_path), run_id="stall", until=600, mode="async", every=3, trouble="stall",
        write_timeout=2, pause=0.1,
    )  # fmt: skip
    for result in results:
        assert result["error"]["code"] == ExitCode.SAVE_FAILED
        assert "rank 1: this rank's write took longer than 0:00:02" in result["error"]["text"]
        assert result["seconds"] < 10
