"""Runs of the tiny worker under the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "recovery"))

from leftovers import processes_of
from tinylab import make_scripts, recipe_text

from runner.system.process import descendants


@dataclass
class Supervised:
    """One `nvrx-run`, tiny worker inside."""

    folder: Path
    process: subprocess.Popen[str]

    def wait(self, timeout: float = 90) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            if self.process.poll() is None:
                for pid in [self.process.pid, *descendants(self.process.pid)]:
                    os.kill(pid, signal.SIGKILL)
                self.process.communicate()
        return self.process.returncode, out, err

    def until(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        """Wait for something to happen while the run goes on."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    @property
    def log(self) -> str:
        """What the launchers printed."""
        return "".join(path.read_text() for path in sorted((self.run / "logs").glob("launcher-*.log")))


@pytest.fixture
def supervised(tmp_path: Path):
    """Starts supervised runs in one folder; afterwards nothing of them may be alive."""
    scripts = make_scripts(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    started: list[Supervised] = []

    def start(layer: str, faults: str = "", *, verbose: bool = False, env: Any = None, **changes: Any):
        if not recipe.exists() or changes:
            recipe.write_text(recipe_text(tmp_path, layer, **changes))
        argv = [sys.executable, str(Path(__file__).parent / "drive.py"), str(scripts), str(recipe)]
        process = subprocess.Popen(
            argv + ["--verbose"] * verbose,
            env=os.environ | {"TINY_FAULTS": faults} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
        )
        started.append(Supervised(tmp_path, process))
        return started[-1]

    yield start
    for item in started:
        item.wait(timeout=20)
    killed = [item for item in started if item.process.returncode == -signal.SIGKILL]
    empty = [path for path in tmp_path.glob("run/faults/silent-*") if path.stat().st_size == 0]
    assert killed or not empty, "files for stacks are left that nothing was written to"
    assert processes_of(tmp_path) == [], "processes are left behind"


@pytest.fixture
def temporary():
    """A folder for temporary files, in which a run must leave none. Sockets lie in it, whose paths must be short."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
        assert list(Path(name).iterdir()) == []
