"""The whole product under the other NVRx releases that users have (the installed one is in all other tests)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_matrix import MATRIX, settings_of
from nvrx_releases import release_environ
from product import Run, make_run, same

from runner.errors import ExitCode

VERSIONS = ("0.6.0", "0.7.0")
BOTH = [
    {"step": 3, "rank": 0, "type": "exception"},
    {"step": 7, "rank": 1, "type": "sigkill"},
    {"step": 10, "rank": 1, "type": "exception"},
]
CELLS = [
    ("none", "hang", 1),
    ("inprocess", "exception", 1),
    ("inprocess", "native_hang", 1),
    ("inprocess", "nan_loss", 1),
    ("ft_launcher", "sigkill", 0),
    ("ft_launcher", "native_hang", 0),
    ("ft_launcher+inprocess", "sigstop", 1),
    ("ft_launcher+inprocess", "exit_0", 0),
]


def launched_with(run: Run) -> set[str]:
    return {event["versions"]["nvidia-resiliency-ext"] for event in run.events("LaunchStarted")}


@pytest.mark.parametrize("version", VERSIONS)
def test_soft_and_hard_faults_end_bit_identical_under_every_release(
    tmp_path: Path, undisturbed: Run, version: str
) -> None:
    # Their writers are in tests/checkpoint/test_ckpt_releases.py, both together in the slow tests below.
    settings = settings_of("ft_launcher+inprocess") | {"checkpoint.mode": "sync"}
    run = make_run(tmp_path, {**settings, "faults.at": BOTH})
    run.finish(**release_environ(version))
    assert launched_with(run) == {version}
    assert len(run.events("FaultFired")) == len(BOTH)
    assert same(run.state(), undisturbed.state())


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("layer", "kind", "rank"), CELLS)
def test_fault_ends_as_the_table_says_under_every_release(
    tmp_path: Path, undisturbed: Run, version: str, layer: str, kind: str, rank: int
) -> None:
    faults: list[dict[str, Any]] = [{"step": 7, "rank": rank, "type": kind}]
    run = make_run(tmp_path, {**settings_of(layer, kind), "faults.at": faults})
    environment = release_environ(version)
    if MATRIX[layer][kind] == "ends":
        done = run.command(**environment)
        assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
    run.finish(**environment)
    assert launched_with(run) == {version}
    assert len(run.events("FaultFired")) == 1
    assert same(run.state(), undisturbed.state())
