"""Saves and loads that outlast every timeout of hang detection: a rank that waits for storage is no hung one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from product import LAYERS, Run, make_run, same
from tiny_recipe import changed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START = {"process_group_timeout": "20s", "start_timeout": "35s"}
SOFT = {"inprocess.soft_timeout": "6s", "inprocess.hard_timeout": "8s", "inprocess.barrier_timeout": "60s",
        "inprocess.heartbeat_timeout": "20s"}  # fmt: skip
LAUNCHER = {"ft_launcher.rank_heartbeat_timeout": "10s", "ft_launcher.initial_rank_heartbeat_timeout": "40s"}
WRITE, LOAD = 25.0, 45.0  # seconds, above all of these

# Runs in every Python process of the command: the first file of shards that it syncs or reads takes its time.
HOOK = """
import os, time

fsync, preadv, waited = os.fsync, os.preadv, []

def wait(file, seconds):
    name = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    if name.endswith(".distcp") and seconds not in waited:
        waited.append(seconds)
        time.sleep(seconds)

def slow_fsync(file):
    wait(file, %(write)s)
    fsync(file)

def slow_preadv(file, *arguments):
    wait(file, %(load)s)
    return preadv(file, *arguments)

os.fsync, os.preadv = slow_fsync, slow_preadv
"""


def slow_storage(folder: Path) -> dict[str, str]:
    """Environment in which saves and loads of a process begin slowly."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(HOOK % {"write": WRITE, "load": LOAD})
    return {"PYTHONPATH": str(folder / "site")}


def recipe(layer: str, steps: int) -> dict[str, Any]:
    changes = START | (SOFT if "inprocess" in layer else {}) | (LAUNCHER if "ft_launcher" in layer else {})
    return {
        "recovery": changed(LAYERS[layer], changes),
        "training.steps": steps,
        "training.schedule": {"kind": "constant"},
        "checkpoint.mode": "sync",
        "checkpoint.every": 4,
    }


@pytest.mark.parametrize("layer", LAYERS)
def test_a_blocking_save_and_a_load_may_outlast_the_detection_of_hangs(tmp_path: Path, layer: str) -> None:
    calm = make_run(tmp_path / "calm", recipe(layer, 8))
    calm.finish()
    environment = slow_storage(tmp_path)
    make_run(tmp_path / "slow", recipe(layer, 4)).finish(**environment)
    run: Run = make_run(tmp_path / "slow", recipe(layer, 8))
    run.finish(**environment)
    assert [event["seconds"] > WRITE for event in run.events("SaveCommitted")] == [True, True]
    assert max(event["seconds"] for event in run.events("Loaded")) > LOAD
    assert run.events("FaultSeen") == []
    assert len(run.events("LifeStarted")) == 4, "two ranks, two commands, no restart"
    assert same(run.state(), calm.state())
