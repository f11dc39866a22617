"""Faults outside the middle of a step: at start-up, in a restore, a snapshot and a save, on rank 0 and another rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_matrix import KINDS, MATRIX, START_TIMEOUT, settings_of
from fault_times import note_times
from product import Run, make_run, same

from runner.errors import ExitCode
from runner.ledger.reader import read_run

# There is nothing to restore before a life has finished a step, or a command has saved one.
PLACES = (("start", 1), ("snapshot", 3), ("restore", 3), ("save", 8))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", MATRIX)
def test_a_fault_ends_in_every_phase_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str, kind: str, rank: int
) -> None:
    faults = [{"step": step, "rank": rank, "type": kind, "phase": phase} for phase, step in PLACES]
    settings = settings_of(layer, kind) | {"checkpoint.snapshot_every": 1}
    settings["recovery"]["start_timeout"] = START_TIMEOUT
    if layer != "none":  # before the first step no sign of life is missed, by either layer: the peers notice
        settings["recovery"]["process_group_timeout"] = "14s"
    run = make_run(tmp_path, settings | {"faults.at": faults})
    if MATRIX[layer][kind] == "ends":
        done = run.command()
        while done.returncode != 0:
            assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
            assert any(line.startswith("nvrx-run: rank ") for line in done.stderr.splitlines()), done.stderr
            assert len(run.events("LaunchEnded")) <= len(PLACES)
            done = run.command()
    else:
        run.finish(seconds=400)
        processes = {record.stamp.pid for record in read_run(run.folder).records if record.stamp.rank >= 0}
        assert len(processes) == 2 if MATRIX[layer][kind] == "in place" else len(processes) > 2
    note_times(run.folder, layer)
    assert len(run.events("FaultFired")) == len(PLACES)
    assert same(run.state(), undisturbed.state())


def test_soft_and_hard_faults_in_every_phase_of_one_run(tmp_path: Path, undisturbed: Run) -> None:
    faults = [
        {"step": 1, "rank": 0, "type": "exception", "phase": "start"},
        {"step": 3, "rank": 1, "type": "sigkill", "phase": "snapshot"},
        {"step": 3, "rank": 0, "type": "exception", "phase": "restore"},
        {"step": 8, "rank": 0, "type": "sigkill", "phase": "save"},
    ]
    layer = "ft_launcher+inprocess"
    settings = settings_of(layer) | {"checkpoint.snapshot_every": 1, "faults.at": faults}
    run = make_run(tmp_path, settings)
    run.finish()
    assert [event["type"] for event in run.events("FaultFired")] == [fault["type"] for fault in faults]
    assert same(run.state(), undisturbed.state())
