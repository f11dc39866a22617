"""Faults, stops and long waits while a checkpoint is being written, which a frozen writer process makes certain."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
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


def command_of(process: psutil.Process) -> str:
    """A process' command line; nothing where it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Going:
    """`nvrx-run` under way."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._log = run.recipe.with_name("output.txt")
        with self._log.open("w") as output:
            argv = [NVRX_RUN, str(run.recipe)]
            self.process = subprocess.Popen(argv, stdout=output, stderr=output, cwd=run.recipe.parent)

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

    def frozen_writers(self) -> list[psutil.Process]:
        """The writer of each rank, frozen before the first save."""
        self.until(lambda: list((self.run.folder / "ledger").glob("rank-*")) and self.run.events("StepEnded"))
        writers = [
            process
            for process in psutil.Process(self.process.pid).children(recursive=True)
            if "spawn_main" in command_of(process)
        ]
        assert len(writers) == 2, list(map(command_of, writers))
        for writer in writers:
            writer.suspend()
        assert not self.run.events("SaveStarted"), "the freeze came too late"
        return writers

    def end(self, seconds: float = 120) -> int:
        code = self.process.wait(seconds)
        assert left_behind(self.run.folder) == [], self.output
        return code


@pytest.fixture
def going() -> Iterator[Callable[[Run], Going]]:
    started: list[Going] = []

    def start(run: Run) -> Going:
        started.append(Going(run))
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
    writers = one.frozen_writers()
    one.until(lambda: run.events("SaveStarted"))
    time.sleep(20)
    for writer in writers:
        writer.resume()
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
    writers = one.frozen_writers()
    one.until(lambda: len(run.events("FaultFired")) == 2)
    for writer in writers:
        writer.resume()
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
    writers = one.frozen_writers()
    one.until(lambda: run.events("SaveStarted"))
    one.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert one.process.poll() is None, one.output
    for writer in writers:
        writer.resume()
    assert one.end() == ExitCode.PREEMPTED, one.output
    assert run.steps_saved()[0] == 40
    assert len(run.steps_saved()) == 2, "the save under way, and that of the stop"
    run.finish()
    assert same(run.state(), calm.state())
