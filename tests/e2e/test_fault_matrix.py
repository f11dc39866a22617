"""Every type of fault, on rank 0 and on another rank, under every layer: what docs/recovery.md says comes true."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fault_matrix import MATRIX, TYPES, settings_of, table
from fault_times import BEGIN, END, PAGE, note_times, seconds_of_faults, times_text
from product import Run, make_run, same

from runner.errors import ExitCode
from runner.faults.records import read_records
from runner.ledger.events import FaultFired, StepEnded
from runner.ledger.reader import read_run

SEVERAL = {  # (step, rank, kind): classes of faults that a default test shows, one run a layer; the last may end it
    "none": [(7, 1, "sigstop")],
    "inprocess": [(3, 0, "exit_0"), (5, 1, "nan_loss"), (9, 1, "native_hang")],
    "ft_launcher": [(3, 0, "sigkill"), (7, 0, "native_hang")],
    "ft_launcher+inprocess": [(3, 0, "exit_0"), (5, 1, "sigstop"), (9, 1, "exception")],
}
LONGEST = 85  # seconds from the fault to the next step, or to the end: below the next timeout of any layer


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("layer", MATRIX)
def test_fault_ends_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str, kind: str, rank: int
) -> None:
    check(tmp_path, undisturbed, layer, [(7, rank, kind)])


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher+inprocess"])
def test_a_rank_that_waits_for_a_frozen_data_worker_is_mended_in_place_before_the_worker_is_late(
    tmp_path: Path, undisturbed: Run, layer: str
) -> None:
    check(tmp_path, undisturbed, layer, [(7, 1, "loader_hang")], more={"dataset.worker_timeout": "1h"})


@pytest.mark.parametrize("layer", MATRIX)
def test_faults_of_several_classes_in_one_run_end_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str
) -> None:
    # Synchronous saves in all but one: what has a writer, of a process that lives on, must be mended as well.
    check(tmp_path, undisturbed, layer, SEVERAL[layer], mode="async" if layer == "inprocess" else "sync")


def check(
    folder: Path,
    undisturbed: Run,
    layer: str,
    faults: list[tuple[int, int, str]],
    mode: str = "async",
    more: dict[str, Any] | None = None,
) -> None:
    """Run a layer with these faults to the end, and compare with the table and with a run without them."""
    kinds = [kind for _, _, kind in faults]
    planned = [{"step": step, "rank": rank, "type": kind} for step, rank, kind in faults]
    settings = settings_of(layer, *kinds) | (more or {})
    run = make_run(folder, {**settings, "faults.at": planned, "checkpoint.mode": mode})
    done = run.command()
    seconds = seconds_of_faults(run.folder)
    assert len(seconds) == len(faults) and max(seconds.values()) < LONGEST, seconds
    note_times(run.folder, layer)
    verdicts = [MATRIX[layer][kind] for kind in kinds]
    processes = workers_between_faults(run)
    for verdict, (before, after) in zip(verdicts, pairwise(processes), strict=True):
        assert len(before) == 2
        assert {"in place": after == before, "respawn": not after & before, "ends": after <= before}[verdict]
    if verdicts[-1] == "ends":
        assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
        assert any(line.startswith("nvrx-run: rank ") for line in done.stderr.splitlines()), done.stderr
        assert "Traceback" not in done.stderr
        if mode == "sync":  # an asynchronous save may not be committed yet
            assert run.steps_saved() == [4]
        run.finish()
        if mode == "sync":
            assert {event["step"] for event in run.events("Loaded")} == {0, 4}
    else:
        assert done.returncode == 0, done.stdout + done.stderr
    assert [event["type"] for event in run.events("FaultFired")] == kinds
    # The checkpoints of the undisturbed run are asynchronous: it trained on while they were written.
    for step in run.steps_saved():
        assert same(run.state(step), undisturbed.state(step)), step
    assert run.steps_saved()[-1] == 12
    assert run.losses() == undisturbed.losses()
    causes = [record for record in read_records(run.folder) if not record.consequence]
    # Every rank sees a loss that is no number; docs/recovery.md has the other.
    if not {"nan_loss", "stuck_collective"} & set(kinds):
        assert {record.rank for record in causes} <= {rank for _, rank, _ in faults}, causes


def workers_between_faults(run: Run) -> list[set[int]]:
    """Processes in which each rank did its last step: before the first fault, before each further one, at the end."""
    found: list[dict[int, int]] = [{}]
    for record in read_run(run.folder).records:
        if isinstance(record.event, FaultFired):
            found.append({})
        elif isinstance(record.event, StepEnded):
            found[-1][record.rank] = record.stamp.pid
    return [set(processes.values()) for processes in found]


def test_the_documentation_shows_this_table_and_the_kept_times() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert f"{BEGIN}\n\n{times_text()}\n\n{END}" in page
