"""Faults, stops and long waits while a checkpoint is being written, which storage that waits makes certain."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_matrix import recovery_of
from product import LAYERS, NVRX_RUN, Run, left_behind, make_run, same
from tiny_recipe import changed

from runner.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 120
LONG = {"training.steps": STEPS, "checkpoint.every": 40}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The long recipe without faults, finished."""
    run = make_run(tmp_path_factory.mktemp("calm"), LONG)
    run.finish()
    return run


# Runs in every Python process of the command: shards reach the disk once a file is gone. A writer process that is
# stopped would be woken.
HOOK = """
import os, time

fsync = os.fsync

def patient_fsync(file):
    name = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    while name.endswith(".distcp") and os.path.exists(%(gate)r):
        time.sleep(0.02)
    fsync(file)

os.fsync = patient_fsync
"""


class Going:
    """`nvrx-run` under way, with storage that waits."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._log = run.recipe.with_name("output.txt")
        self._gate = run.recipe.with_name("storage-waits")
        self._gate.touch()
        site = run.recipe.with_name("site")
        site.mkdir()
        (site / "sitecustomize.py").write_text(HOOK % {"gate": str(self._gate)})
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [NVRX_RUN, str(run.recipe)], stdout=output, stderr=output, cwd=run.recipe.parent,
                env={**os.environ, "PYTHONPATH": str(site)},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], Any], seconds: float = 90) -> Any:
        """What `condition` returns, once it is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return found

    def let_saves_end(self) -> None:
        """From now on, storage takes what is written."""
        assert self.run.events("SaveStarted"), "it was to be in the middle of one"
        self._gate.unlink()

    def end(self, seconds: float = 120) -> int:
        code = self.process.wait(seconds)
        assert left_behind(self.run.folder) == [], self.output
        return code


@pytest.fixture
def going() -> Iterator[Callable[[Run], Going]]:
    started: list[Going] = []

    def start(run: Run) -> Going:
        started.append(Going(run))
        started[-1].until(lambda: list((run.folder / "ledger").glob("rank-*")))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGKILL)  # its other half ends all the rest
            one.process.wait(30)


@pytest.mark.parametrize("layer", ["ft_launcher", "ft_launcher+inprocess"])
def test_a_save_that_outlasts_the_heartbeat_is_waited_for(
    tmp_path: Path, calm: Run, going: Callable[[Run], Going], layer: str
) -> None:
    recovery = changed(recovery_of(layer), {"ft_launcher.rank_heartbeat_timeout": "15s"})
    run = make_run(tmp_path, {"training.steps": STEPS, "checkpoint.every": STEPS, "recovery": recovery})
    one = going(run)
    one.until(lambda: run.events("SaveStarted"))
    time.sleep(20)
    one.let_saves_end()
    assert one.end() == 0, one.output
    assert len(run.events("LifeStarted")) == 2, "nobody took the wait for a hang"
    assert same(run.state(), calm.state())


@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher+inprocess"])
def test_saves_that_a_fault_abandons_are_never_committed(
    tmp_path: Path, calm: Run, going: Callable[[Run], Going], layer: str
) -> None:
    """An exception one step after an asynchronous save, twice."""
    faults = [{"step": step, "rank": 1, "type": "exception"} for step in (41, 81)]
    run = make_run(tmp_path, {**LONG, "recovery": LAYERS[layer], "faults.at": faults})
    one = going(run)
    one.until(lambda: len(run.events("FaultFired")) == 2)
    one.let_saves_end()
    assert one.end() == 0, one.output
    assert run.steps_saved() == [STEPS]
    assert [path.name for path in (run.folder / "checkpoints").glob("step-*")] == [f"step-{STEPS}"]
    assert {event["step"] for event in run.events("Loaded")} == {0, 40, 80}, "the newest snapshot was used"
    assert same(run.state(), calm.state())


@pytest.mark.parametrize("layer", ["none", "ft_launcher+inprocess"])
def test_a_stop_in_the_middle_of_a_save_is_honoured_after_it(
    tmp_path: Path, calm: Run, going: Callable[[Run], Going], layer: str
) -> None:
    run = make_run(tmp_path, {**LONG, "recovery": LAYERS[layer]})
    one = going(run)
    one.until(lambda: run.events("SaveStarted"))
    one.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert one.process.poll() is None, one.output
    one.let_saves_end()
    assert one.end() == ExitCode.PREEMPTED, one.output
    assert run.steps_saved()[0] == 40
    assert len(run.steps_saved()) == 2, "the save under way, and that of the stop"
    run.finish()
    assert same(run.state(), calm.state())
