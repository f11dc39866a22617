"""Every type of fault, on rank 0 and on another rank, under every layer: what docs/recovery.md says comes true."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_matrix import MATRIX, TYPES, settings_of, table
from fault_times import BEGIN, END, PAGE, note_times, seconds_of_faults, times_text
from product import Run, make_run, same

from runner.errors import ExitCode
from runner.faults.records import read_records
from runner.ledger.reader import read_run

QUICK = {
    ("none", "hang", 1),
    ("inprocess", "native_hang", 1),
    ("inprocess", "nan_loss", 1),
    ("ft_launcher", "native_hang", 0),
    ("ft_launcher+inprocess", "sigstop", 1),
    ("ft_launcher+inprocess", "exit_0", 0),
}
CELLS = [
    pytest.param(layer, kind, rank, marks=() if (layer, kind, rank) in QUICK else pytest.mark.slow)
    for layer in MATRIX
    for kind in TYPES
    for rank in (0, 1)
]
LONGEST = 85  # seconds from the fault to the next step, or to the end: below the next timeout of any layer


@pytest.mark.parametrize(("layer", "kind", "rank"), CELLS)
def test_fault_ends_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str, kind: str, rank: int
) -> None:
    run = make_run(
        tmp_path,
        {**settings_of(layer, kind), "faults.at": [{"step": 7, "rank": rank, "type": kind}]},
    )
    done = run.command()
    (seconds,) = seconds_of_faults(run.folder).values()
    assert seconds < LONGEST
    note_times(run.folder, layer)
    verdict = MATRIX[layer][kind]
    if verdict == "ends":
        assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
        assert any(line.startswith("nvrx-run: rank ") for line in done.stderr.splitlines()), done.stderr
        assert "Traceback" not in done.stderr
        run.finish()
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        processes = {record.stamp.pid for record in read_run(run.folder).records if record.stamp.rank >= 0}
        assert len(processes) == 2 if verdict == "in place" else len(processes) > 2
    assert len(run.events("FaultFired")) == 1
    assert same(run.state(), undisturbed.state())
    causes = [record for record in read_records(run.folder) if not record.consequence]
    if kind not in (
        "nan_loss",
        "stuck_collective",
    ):  # every rank sees that one; see docs/recovery.md for the other
        assert {record.rank for record in causes} <= {rank}, causes


def test_the_documentation_shows_this_table_and_the_kept_times() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert f"{BEGIN}\n\n{times_text()}\n\n{END}" in page
