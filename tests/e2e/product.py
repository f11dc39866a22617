"""The product as a user has it: recipes as files, `nvrx-run` as a process, checkpoints read by torch alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
import yaml
from tiny_recipe import TINY, changed
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from runner.ledger.reader import read_run

NVRX_RUN = str(Path(sys.executable).with_name("nvrx-run"))

# Timeouts stay at their defaults, far above anything here: no test of this folder waits for one.
LAYERS: dict[str, dict[str, Any]] = {
    name: {"layer": name} for name in ("none", "inprocess", "ft_launcher", "ft_launcher+inprocess")
}


@dataclass
class Run:
    """One run's folder and what its commands printed."""

    recipe: Path
    folder: Path

    def command(
        self, *arguments: str, timeout: float = 150, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`nvrx-run` with these arguments and this recipe, to its end; nothing may be left behind."""
        with TemporaryDirectory(prefix="e2e-") as temporary:
            surroundings = {"HF_HUB_OFFLINE": "1", "TMPDIR": temporary, **environment}
            done = subprocess.run(
                [NVRX_RUN, *arguments, str(self.recipe)],
                capture_output=True, text=True, timeout=timeout, check=False,
                cwd=self.recipe.parent, env={**os.environ, **surroundings},
            )  # fmt: skip
            left = [path.name for path in Path(temporary).iterdir()]
            assert [name for name in left if not name.startswith("torchinductor_")] == []
        assert left_behind(self.folder) == [], done.stdout + done.stderr
        assert [path for path in self.folder.glob("faults/silent-*") if path.stat().st_size == 0] == []
        return done

    def finish(self, *, seconds: float = 150, **environment: str) -> subprocess.CompletedProcess[str]:
        """`nvrx-run RECIPE`, which must succeed within `seconds`."""
        done = self.command(timeout=seconds, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's events of a kind, with their stamps, in order of the wall clock."""
        return [
            {**vars(record.event), "rank": record.stamp.rank, "t": record.stamp.t}
            for record in read_run(self.folder).records
            if type(record.event).__name__ == kind
        ]

    def losses(self) -> dict[int, float]:
        """Loss of each step on rank 0; the last execution of a step counts."""
        return {event["step"]: event["loss"] for event in self.events("StepEnded") if event["rank"] == 0}

    def steps_saved(self, folder: Path | None = None) -> list[int]:
        """Steps of committed checkpoints, in `folder` where the recipe names one."""
        found = (folder or self.folder / "checkpoints").glob("step-*")
        return sorted(int(path.name[5:]) for path in found if path.name[5:].isdigit())

    def state(self, step: int | None = None, folder: Path | None = None) -> dict[str, torch.Tensor]:
        """All tensors of a checkpoint (default: the last), as torch.distributed.checkpoint itself reads them."""
        folder = folder or self.folder / "checkpoints"
        return read_checkpoint(folder / f"step-{self.steps_saved(folder)[-1] if step is None else step}")


def read_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint folder by name, in full shape."""
    state: dict[str, Any] = {}
    _load_state_dict(
        state, storage_reader=FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert state
    return state


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit-identical: same names, types, shapes and bytes."""
    return one.keys() == other.keys() and all(_same(tensor, other[name]) for name, tensor in one.items())


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    # Bytes, not values: NaN equals itself and 0.0 differs from -0.0.
    return a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16


def make_run(folder: Path, changes: dict[str, Any] | None = None, base: dict[str, Any] = TINY) -> Run:
    """A run in `folder` from the tiny recipe with dotted keys replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        yaml.safe_dump(changed(base, {"output.folder": str(folder / "run"), **(changes or {})}))
    )
    return Run(recipe, folder / "run")


def left_behind(run_folder: Path) -> list[str]:
    """Processes that belong to the run, and its files in shared memory."""
    processes = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("NVRX_RUN_FOLDER", ""), process.cwd()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if process.pid != os.getpid() and any(str(run_folder) in word for word in words):
            processes.append(f"{process.pid} {' '.join(words)}")
    marker = run_folder / "run.json"
    run_id = json.loads(marker.read_text())["run_id"] if marker.exists() else None
    shared = [str(path) for path in Path("/dev/shm").glob(f"*nvrx-{run_id}*")] if run_id else []
    return processes + shared
