"""Ranks learn how a save ended at different moments, and still decide alike whether the next one starts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ckpt_world import Rank, Recorder, Trainer, World, manager, named, wait_for_writer, writer_pid

from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode, RunError


def one_knows_first(place: Rank, folder: str, run_id: str, first: int, on_busy: str) -> dict[str, Any]:
    """Rank `first` loses its writer in the save of step 2, and knows of the failure two steps before its peer does."""
    recorder = Recorder()
    checkpointer = manager(
        folder, recorder, run_id, mode="async", every=2, on_busy=on_busy, on_error="stop", write_timeout=8
    )
    life = place.life()
    trainer = Trainer(life)
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    wait_for_writer(checkpointer._writing)
    saves = checkpointer._saves
    notice = saves.notice
    knows = place.rank == first
    if knows:
        os.kill(writer_pid(), signal.SIGSTOP)
    else:
        saves.notice = lambda: None  # type: ignore[method-assign]
    trainer.step(checkpointer)
    trainer.step(checkpointer)
    if knows:
        os.kill(writer_pid(), signal.SIGKILL)
        end = time.monotonic() + 30
        while saves.failed is None:
            saves.notice()
            assert time.monotonic() < end
            time.sleep(0.002)
    began = time.monotonic()
    error = None
    known = saves.failed is not None
    try:
        trainer.step(checkpointer)
        known_ahead = saves.failed is not None
        trainer.step(checkpointer)  # a save is due
        saves.notice = notice  # type: ignore[method-assign]
        while trainer.state.step < 40:
            trainer.step(checkpointer)
    except RunError as failure:
        error = (int(failure.exit_code), str(failure))
    finally:
        checkpointer.close()
        remove_leftovers(named(run_id))
    return {
        "known": (known, known_ahead),
        "error": error,
        "step": trainer.state.step,
        "saves": [fields["step"] for fields in recorder.said("saving")],
        "seconds": time.monotonic() - began,
    }


@pytest.mark.parametrize(("first", "on_busy"), [(0, "skip"), pytest.param(1, "skip", marks=pytest.mark.slow)])
def test_ranks_that_do_not_both_know_of_a_failure_agree_on_the_next_save(
    two: World, tmp_path: Path, first: int, on_busy: str
) -> None:
    results = two.run(
        one_knows_first, folder=str(tmp_path), run_id=f"first{first}{on_busy}", first=first, on_busy=on_busy
    )
    for rank, result in enumerate(results):
        assert result["known"] == (rank == first,) * 2  # they disagreed when the save came due
        code, text = result["error"]
        assert code == ExitCode.SAVE_FAILED and "step 2" in text
        assert result["saves"] == [2]
        assert result["seconds"] < 10
    assert results[0]["step"] == results[1]["step"]


def force_after_a_failure(place: Rank, folder: str, run_id: str) -> dict[str, Any]:
    """The save of step 2 fails; rank 0 knows, rank 1 does not, when all are asked to save this very step at once."""
    recorder = Recorder()
    checkpointer = manager(
        folder, recorder, run_id, mode="async", every=2, on_busy="skip", on_error="continue", write_timeout=8
    )
    life = place.life()
    trainer = Trainer(life)
    checkpointer.attach(life, trainer.state)
    checkpointer.restore()
    wait_for_writer(checkpointer._writing)
    saves, notice = checkpointer._saves, checkpointer._saves.notice
    if place.rank == 0:
        os.kill(writer_pid(), signal.SIGSTOP)
    else:
        saves.notice = lambda: None  # type: ignore[method-assign]
    trainer.step(checkpointer)
    trainer.step(checkpointer)
    if place.rank == 0:
        os.kill(writer_pid(), signal.SIGKILL)
        end = time.monotonic() + 30
        while saves._job is not None:
            saves.notice()
            assert time.monotonic() < end
            time.sleep(0.002)
    checkpointer.after_update(force_save=True)
    saves.notice = notice  # type: ignore[method-assign]
    checkpointer.finish()
    checkpointer.close()
    return {"saves": [fields["step"] for fields in recorder.said("saving")]}


@pytest.mark.slow
def test_a_stop_right_after_a_failed_save_saves_that_step_once_more(two: World, tmp_path: Path) -> None:
    results = two.run(force_after_a_failure, folder=str(tmp_path), run_id="force")
    assert [result["saves"] for result in results] == [[2, 2]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
