"""Each recovery layer mends the fault that it is for, and the run ends as if nothing had happened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from product import LAYERS, NVRX_RUN, Run, left_behind, make_run, same

from runner.errors import ExitCode
from runner.recipe.facts import Facts
from runner.recipe.load import load_recipe

EXCEPTION = [{"step": 7, "rank": 1, "type": "exception"}]
SIGKILL = [{"step": 7, "rank": 0, "type": "sigkill"}]
BOTH = [
    {"step": 3, "rank": 0, "type": "exception"},
    {"step": 7, "rank": 1, "type": "sigkill"},
    {"step": 10, "rank": 1, "type": "exception"},
]


TOLD = re.compile(r"restart in process|; restart \d+ of \d+ of the workers$")


@pytest.mark.slow  # several faults in one run, of every layer: test_fault_matrix.py
@pytest.mark.parametrize(
    ("layer", "faults"), [("inprocess", EXCEPTION), ("ft_launcher", SIGKILL), ("ft_launcher+inprocess", BOTH)]
)
def test_a_run_with_faults_ends_bit_identical_to_one_without(
    tmp_path: Path, undisturbed: Run, layer: str, faults: list[dict[str, Any]]
) -> None:
    run = make_run(tmp_path, {"recovery": LAYERS[layer], "faults.at": faults})
    done = run.finish()
    assert same(run.state(), undisturbed.state()), done.stdout
    assert run.losses() == undisturbed.losses()
    assert len(run.events("FaultFired")) == len(faults)
    told = [line for line in (done.stdout + done.stderr).splitlines() if TOLD.search(line)]
    assert len(told) == len(faults), done.stdout + done.stderr
    for fault in faults:
        how = "died (SIGKILL)" if fault["type"] == "sigkill" else "InjectedFault"
        marks = (f"rank {fault['rank']} ", how, f"after step {fault['step'] - 1}")
        assert any(all(mark in line for mark in marks) for line in told), (fault, told)


@pytest.mark.slow  # likewise
def test_with_no_layer_a_fault_ends_the_job_and_the_same_command_goes_on(
    tmp_path: Path, undisturbed: Run
) -> None:
    # Synchronous saves: whether an asynchronous one is committed before the fault is a matter of luck.
    changes = {"recovery": LAYERS["none"], "checkpoint.mode": "sync", "faults.at": EXCEPTION}
    run = make_run(tmp_path, changes)
    stopped = run.command()
    assert stopped.returncode == ExitCode.CRASHED
    assert run.steps_saved() == [4]
    run.finish()
    assert same(run.state(), undisturbed.state())
    assert {event["step"] for event in run.events("Loaded")} == {0, 4}


def test_a_tiny_checkpoint_is_as_large_as_its_recipe_says(undisturbed: Run) -> None:
    files = (undisturbed.folder / "checkpoints" / "step-12").iterdir()
    estimated = Facts(load_recipe(undisturbed.recipe).recipe).checkpoint_bytes
    assert estimated == pytest.approx(sum(path.stat().st_size for path in files), rel=0.1)


def test_a_finished_run_started_again_exits_0_and_rewrites_nothing(undisturbed: Run) -> None:
    files = {path: path.stat().st_mtime_ns for path in (undisturbed.folder / "checkpoints").rglob("*")}
    undisturbed.finish()
    assert files == {
        path: path.stat().st_mtime_ns for path in (undisturbed.folder / "checkpoints").rglob("*")
    }


def test_a_lost_ledger_does_not_fail_a_finished_run(undisturbed: Run) -> None:
    ledger, away = undisturbed.folder / "ledger", undisturbed.folder / "ledger.away"
    ledger.rename(away)
    try:
        done = undisturbed.command()
    finally:
        shutil.rmtree(ledger, ignore_errors=True)
        away.rename(ledger)
    assert done.returncode == 0
    assert "there is no summary: " in done.stderr


def test_an_end_ahead_of_what_was_trained_is_only_an_end_if_its_checkpoint_is_there(
    undisturbed: Run, tmp_path: Path
) -> None:
    lower = Run(tmp_path / "lower.yaml", undisturbed.folder)
    text = undisturbed.recipe.read_text()
    assert "steps: 12" in text
    lower.recipe.write_text(text.replace("steps: 12", "steps: 8"))
    done = lower.finish()
    step_8 = undisturbed.folder / "checkpoints" / "step-8"
    assert f"finished already: {step_8} is there (the run went on to step 12)" in done.stderr


def test_closed_streams_take_nothing_from_a_run(undisturbed: Run) -> None:
    files = {path for path in undisturbed.folder.rglob("*") if path.is_file()}
    command = f"exec {NVRX_RUN} {undisturbed.recipe} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, timeout=60).returncode == 0
    assert {path for path in undisturbed.folder.rglob("*") if path.is_file()} == files


@pytest.mark.slow  # what the ranks agree on then: tests/checkpoint/test_ckpt_contradiction.py
def test_a_run_whose_checkpoints_were_deleted_says_so_and_touches_nothing(
    undisturbed: Run, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    run = make_run(tmp_path, {"recovery": LAYERS["none"]})
    shutil.rmtree(run.folder / "checkpoints")
    done = run.command()
    assert done.returncode == ExitCode.NO_LOADABLE_CHECKPOINT, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"{run.folder}/checkpoints holds no checkpoint" in line and "last of step 12" in line
    assert run.steps_saved() == []


@pytest.mark.slow  # likewise
def test_a_sync_and_an_async_checkpoint_of_the_same_step_are_bit_identical(
    tmp_path: Path, undisturbed: Run
) -> None:
    """The undisturbed run trained on while its checkpoints were written."""
    run = make_run(tmp_path, {"checkpoint.mode": "sync"})
    run.finish()
    assert run.steps_saved() == undisturbed.steps_saved() == [4, 8, 12]
    for step in run.steps_saved():
        assert same(run.state(step), undisturbed.state(step))


def test_a_run_goes_on_at_another_world_size_and_outlives_whoever_reads_its_output(
    tmp_path: Path, undisturbed: Run
) -> None:
    """From a checkpoint of two ranks, with one."""
    run = make_run(tmp_path, {"cluster.processes_per_node": 1, "checkpoint.mode": "sync"})
    step_4 = Path("checkpoints/step-4")
    shutil.copytree(undisturbed.folder / step_4, run.folder / step_4)
    shell = f"{NVRX_RUN} {run.recipe} | head -n 2"
    subprocess.run(["bash", "-c", shell], check=True, timeout=150, cwd=tmp_path, capture_output=True)
    losses = run.losses()
    assert list(losses) == list(range(5, 13))
    for step, loss in losses.items():
        assert loss == pytest.approx(undisturbed.losses()[step], rel=2e-5), step
    assert run.steps_saved() == [4, 8, 12]
    assert (run.folder / "finished.json").exists()
    assert left_behind(run.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_is_prolonged_at_another_world_size(
    tmp_path: Path, undisturbed: Run, before: int, after: int
) -> None:
    """A run of 6 steps is prolonged to 12 with another number of ranks."""
    sync = {"checkpoint.mode": "sync"}  # the same files
    first = {"cluster.processes_per_node": before, "training.steps": 6, "training.schedule.decay_steps": 12}
    make_run(tmp_path, first | sync).finish()
    run = make_run(tmp_path, {"cluster.processes_per_node": after} | sync)
    run.finish()
    losses = run.losses()
    assert losses.keys() == undisturbed.losses().keys()
    for step, loss in undisturbed.losses().items():
        assert losses[step] == pytest.approx(loss, rel=2e-5), step
