"""Every type of fault, on rank 0 and on another rank, under every layer: what docs/recovery.md says comes true."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fault_matrix import MATRIX, TYPES, table
from product import LAYERS, Run, changed, make_run, same

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
LONGEST = 100  # seconds from the start to the end of a command on two cores, far below the next timeout of any layer


def recovery_of(layer: str) -> dict[str, Any]:
    """The layer with timeouts that a test can wait for."""
    changes = {"process_group_timeout": "12s" if layer == "none" else "90s"}
    if "inprocess" in layer:
        changes |= {
            "inprocess.soft_timeout": "8s",
            "inprocess.hard_timeout": "12s",
            "inprocess.barrier_timeout": "60s",
            "inprocess.heartbeat_timeout": "20s",
        }
    if "ft_launcher" in layer:
        changes["ft_launcher.rank_heartbeat_timeout"] = "12s" if layer == "ft_launcher" else "45s"
    return changed(LAYERS[layer], changes)


@pytest.mark.parametrize(("layer", "kind", "rank"), CELLS)
def test_fault_ends_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str, kind: str, rank: int
) -> None:
    run = make_run(
        tmp_path,
        {"recovery": recovery_of(layer), "faults.at": [{"step": 7, "rank": rank, "type": kind}]},
    )
    began = time.monotonic()
    done = run.command()
    assert time.monotonic() - began < LONGEST
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
    if kind != "nan_loss":  # every rank sees that one
        assert {record.rank for record in causes} <= {rank}, causes


def test_the_documentation_shows_this_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "recovery.md"
    assert table() in page.read_text(encoding="utf-8")
