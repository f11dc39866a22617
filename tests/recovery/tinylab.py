"""Runs of the tiny worker under the real launchers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from nvrx_releases import release_environ

from runner.control.outcome import Outcome, outcome_folder
from runner.emit.launcher import launch_environ, launcher_argv
from runner.launch.forkserver import SOCKET, ready_file
from runner.recipe.recipe import Recipe
from runner.system.network import ReservedPort
from runner.system.process import descendants

HERE = Path(__file__).parent
STEPS = 12

FAST_INPROCESS = {
    "soft_timeout": "3s",
    "hard_timeout": "5s",
    "barrier_timeout": "20s",
    "completion_timeout": "20s",
    "heartbeat_timeout": "4s",
    "heartbeat_interval": "500ms",
    "monitor_interval": "100ms",
    "last_call_wait": "50ms",
    "termination_grace": "500ms",
}
FAST_LAUNCHER = {
    "max_restarts": 5,
    "rank_heartbeat_timeout": "6s",
    "initial_rank_heartbeat_timeout": "40s",
    "workers_stop_timeout": "500ms",
    "term_timeout": "5s",
}


_KEPT: list[ReservedPort] = []


def kept_port() -> int:
    """A port that nobody but who names it gets as long as the tests run."""
    _KEPT.append(ReservedPort())
    return _KEPT[-1].number


def recipe_text(folder: Path, layer: str, **changes: Any) -> str:
    """A recipe for the tiny worker; only training.steps and recovery matter to it."""
    recovery: dict[str, Any] = {
        "layer": layer,
        "process_group_timeout": changes.pop("process_group_timeout", "30s"),
        "start_timeout": changes.pop("start_timeout", "30s"),
        "rendezvous_timeout": "60s",
        "stop_timeout": changes.pop("stop_timeout", "60s"),
    }
    if "inprocess" in layer:
        recovery["inprocess"] = FAST_INPROCESS | changes.pop("inprocess", {})
    if "ft_launcher" in layer:
        recovery["ft_launcher"] = FAST_LAUNCHER | changes.pop("ft_launcher", {})
    return yaml.safe_dump(
        {
            "name": "tiny",
            "model": {"architecture": {"model_type": "llama"}},
            "dataset": {"source": "embedded"},
            "sharding": {"strategy": "ddp"},
            "training": {"steps": changes.pop("steps", STEPS), "global_batch_size": 2},
            "checkpoint": {"every": 5},
            "recovery": recovery,
            "cluster": {
                "accelerator": "cpu",
                "processes_per_node": changes.pop("ranks", 2),
                "rendezvous_port": kept_port(),
            },
            "output": {"folder": str(folder / "run")},
            **changes,
        }
    )


@dataclass
class TinyRun:
    """One launch of the tiny worker."""

    folder: Path
    recipe: Recipe
    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout: float = 90) -> int:
        """The launcher's exit status; whatever it left behind is an error."""
        try:
            return self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                for pid in [self.process.pid, *descendants(self.process.pid)]:
                    os.kill(pid, 9)
                self.process.wait()

    @property
    def state(self) -> list[int]:
        """Steps done and the number reached."""
        result: list[int] = json.loads((self.folder / "run/state.json").read_text())
        return result

    @property
    def outcomes(self) -> list[Outcome]:
        """What the workers wrote."""
        paths = outcome_folder(self.folder / "run").glob("[!.]*.json")
        return sorted((Outcome(**json.loads(path.read_text())) for path in paths), key=lambda o: o.time)

    @property
    def attempts(self) -> list[str]:
        """Names of the lives, in order."""
        lives = sorted((self.folder / "run/lives").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return list(dict.fromkeys(path.name.rsplit("-", 1)[0] for path in lives))


def expected(steps: int = STEPS, ranks: int = 2) -> list[int]:
    """What the tiny worker's number must be at the end."""
    return [steps, ranks * steps * (steps + 1) // 2 + steps * ranks * (ranks - 1) // 2]


def make_scripts(folder: Path) -> Path:
    """A folder of console scripts whose worker is the tiny one."""
    scripts = folder / "bin"
    scripts.mkdir()
    for name in ("torchrun", "ft_launcher"):
        (scripts / name).symlink_to(Path(sys.executable).parent / name)
    python = scripts / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    worker = scripts / "nvrx-worker"
    worker.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "tiny_entry.py"} "$@"\n')
    worker.chmod(0o755)
    return scripts


@contextlib.contextmanager
def tiny_server(folder: Path) -> Iterator[Path]:
    """A fork server of tiny workers; its socket."""
    socket = folder / "fork-server"
    program = [sys.executable, str(HERE / "tiny_entry.py"), "--fork-server", str(socket)]
    with subprocess.Popen(program) as server:
        try:
            deadline = time.monotonic() + 60
            while not ready_file(socket).exists():
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield socket
        finally:
            server.kill()


def tiny_starter(tmp_path: Path, server: Path):
    """Starts launches of the tiny worker in one folder; checks that no process outlives the test.

    Args:
        server: socket of `tiny_server`, for the installed release of NVRx.
    """
    scripts = make_scripts(tmp_path)
    runs: list[TinyRun] = []

    def start(
        layer: str,
        faults: str = "",
        environ: dict[str, str] | None = None,
        nvrx: str | None = None,
        **changes: Any,
    ) -> TinyRun:
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe_text(tmp_path, layer, **changes))
        recipe = Recipe.model_validate(yaml.safe_load(path.read_text()), strict=False)
        argv = launcher_argv(recipe, recipe_path=path, bin_dir=scripts, nvrx_version=nvrx)
        log = tmp_path / f"launcher-{len(runs)}.log"
        surroundings = release_environ(nvrx) if nvrx else dict(os.environ)
        env = launch_environ(recipe, surroundings) | {
            "TINY_FAULTS": faults,
            **({} if nvrx else {SOCKET: str(server)}),
            **(environ or {}),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=tmp_path
            )
        run = TinyRun(tmp_path, recipe, process, log)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.wait(timeout=10)
