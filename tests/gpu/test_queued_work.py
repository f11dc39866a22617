"""The trap of queued work, on two GPUs: `pytest -m gpu tests/gpu`.

One rank stops taking part while the other has queued its collectives, the update behind them and the snapshot behind
that. The abort lets the queue run on garbage. The run must go on from the last snapshot that was complete before,
and its losses must equal an undisturbed run's; without the freeze that runs ahead of the abort they must not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from product import TINY, Run, changed, make_run

pytestmark = pytest.mark.gpu

WITHOUT_FREEZE = """
import importlib.abc, importlib.machinery, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in ("runner.checkpoint.staging", "runner.train.loop"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            if name == "runner.checkpoint.staging":
                module.Staging.freeze = lambda self: None
            else:
                module.TrainingLoop.freeze = lambda self: None
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def recipe() -> dict[str, Any]:
    """Four layers of some width, so that a step is long enough for the host to run ahead of the GPU."""
    shape = {
        "model.architecture.hidden_size": 1024,
        "model.architecture.intermediate_size": 2816,
        "model.architecture.num_hidden_layers": 4,
        "model.architecture.attention_dropout": 0.0,
        "model.architecture.max_position_embeddings": 1024,
        "dataset": {"source": "embedded", "sequence_length": 1024},
        "training": {"steps": 30, "global_batch_size": 8, "micro_batch_size": 4, "deterministic": True},
        "checkpoint": {"every": 30, "snapshot_every": 1},
        "cluster": {"accelerator": "cuda", "processes_per_node": 2},
    }
    return changed(TINY, shape)


def hang(folder: Path) -> Run:
    return make_run(
        folder,
        {
            "recovery": {"layer": "inprocess", "inprocess": {"soft_timeout": "5s", "hard_timeout": "20s"}},
            "faults.at": [{"step": 15, "rank": 1, "type": "hang"}],
        },
        recipe(),
    )


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    run = make_run(tmp_path_factory.mktemp("undisturbed"), {"recovery": {"layer": "none"}}, recipe())
    run.finish()
    return run.losses()


def test_an_aborted_collective_leaves_no_trace(tmp_path: Path, losses: dict[int, float]) -> None:
    run = hang(tmp_path)
    run.finish()
    assert run.losses() == losses
    resumed = [event["step"] for event in run.events("Loaded") if event["source"] == "memory"]
    assert resumed == [14, 14]


def test_without_the_freeze_garbage_is_taken_for_a_step(tmp_path: Path, losses: dict[int, float]) -> None:
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(WITHOUT_FREEZE)
    run = hang(tmp_path)
    done = run.command(PYTHONPATH=str(tmp_path / "patch"))
    assert done.returncode != 0 or run.losses() != losses
