"""A silent rank is missed after `soft_timeout` or `rank_heartbeat_timeout`, but for the first step of its process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from product import make_run

from runner.errors import ExitCode
from runner.faults.records import read_records

TIGHT: dict[str, Any] = {
    "inprocess": {"inprocess": {"soft_timeout": "4s", "hard_timeout": "6s", "barrier_timeout": "60s"}},
    "ft_launcher": {"ft_launcher": {"rank_heartbeat_timeout": "5s"}},
}


def recipe(layer: str, hang: dict[str, Any], start_timeout: str = "2m") -> dict[str, Any]:
    """A rank that is in one call into native code in its first step; one that is silent for 6 s is killed."""
    return {
        "recovery": {"layer": layer, **TIGHT[layer], "start_timeout": start_timeout},
        "faults": {"at": [{"step": 1, "rank": 1, "type": "native_hang"}], **hang},
    }


@pytest.mark.parametrize("layer", ["inprocess", pytest.param("ft_launcher", marks=pytest.mark.slow)])
def test_a_call_of_the_first_step_may_take_longer_than_the_timeouts_of_steps(
    tmp_path: Path, layer: str
) -> None:
    run = make_run(tmp_path, recipe(layer, {"hang_duration": "9s"}))
    run.finish()
    assert [event["type"] for event in run.events("FaultFired")] == ["native_hang"]
    assert run.events("FaultSeen") == []
    assert len(run.events("LifeStarted")) == 2
    assert max(event["seconds"] for event in run.events("StepEnded") if event["step"] == 1) > 8


@pytest.mark.slow
def test_a_call_of_a_first_step_that_never_comes_back_is_missed_after_start_timeout(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe("inprocess", {}, start_timeout="30s"))
    done = run.command()
    assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
    assert "nvrx-run: rank 1 hung, and was stopped after step 0" in done.stderr, done.stderr
    (fired,) = run.events("FaultFired")
    seen = {event["rank"]: event for event in run.events("FaultSeen")}
    assert 28 < seen[1]["t"] - fired["t"] < 60
    assert seen[1]["reason"].startswith("no progress for")
    assert seen[0]["reason"].endswith("waiting for its peers")


@pytest.mark.slow
def test_the_launcher_misses_a_first_step_that_never_comes_back_after_start_timeout(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe("ft_launcher", {}, start_timeout="20s"))
    run.finish()
    (fired,) = run.events("FaultFired")
    (record,) = [record for record in read_records(run.folder) if not record.consequence]
    assert (record.kind, record.rank) == ("hang", 1)
    assert "injector.py" in record.stacks
    assert 24 < min(event["t"] for event in run.events("FaultSeen")) - fired["t"] < 40
    assert len(run.events("LifeStarted")) == 4
