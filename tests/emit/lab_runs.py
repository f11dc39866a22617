"""Runs in imitated pods: the recipe of a run, the lab for it, and what its last checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from podlab import PodLab
from recipes_for_tests import merged, tiny
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from runner.emit.manifest import manifest_objects
from runner.recipe.recipe import Recipe

STEPS, EVERY = 12, 3
_INPROCESS = {
    "soft_timeout": "20s",
    "hard_timeout": "30s",
    "barrier_timeout": "90s",
    "heartbeat_timeout": "25s",
}
_FT = {"rank_heartbeat_timeout": "60s", "initial_rank_heartbeat_timeout": "3m"}
LAYERS: dict[str, dict[str, Any]] = {
    "none": {"layer": "none"},
    "inprocess": {"layer": "inprocess", "inprocess": _INPROCESS},
    "ft_launcher": {"layer": "ft_launcher", "ft_launcher": _FT},
    "ft_launcher+inprocess": {"layer": "ft_launcher+inprocess", "inprocess": _INPROCESS, "ft_launcher": _FT},
}


def lab_recipe(layer: str, nodes: int, **change: Any) -> Recipe:
    """A model that trains in a second, on CPU nodes that no catalogue lists."""
    base = {
        "name": "lab",
        "model": {
            "architecture": {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
        },
        "dataset": {"sequence_length": 32, "max_documents": 40},
        "training": {"steps": STEPS, "global_batch_size": 4, "micro_batch_size": 1},
        "checkpoint": {"every": EVERY, "keep_last": 10},
        "recovery": {**LAYERS[layer], "process_group_timeout": "40s", "rendezvous_timeout": "3m"},
        "cluster": {
            "accelerator": "cpu",
            "processes_per_node": 1,
            "nodes": nodes,
            "instance_type": "lab.cpu",
            "instance": {"gpus": 0, "vcpus": 4, "memory": "16GiB"},
            "kubernetes": {
                "image": "lab",
                "storage": {"source": "claim", "claim_name": "lab", "mount_path": "/mnt/shared"},
                "env": {"HF_HUB_OFFLINE": "1"},
            },
        },
    }
    return tiny(**merged(base, change))


def run_lab(
    folder: Path,
    recipe: Recipe,
    *,
    timeout: float = 400,
    late_leader: float = 0.0,
    extra_path: tuple[Path, ...] = (),
    each_tick: Callable[[PodLab], None] = lambda lab: None,
    expected: str = "Complete",
) -> PodLab:
    """Run the recipe's Job in imitated pods to its end."""
    lab = PodLab(manifest_objects(recipe), folder, late_leader=late_leader, extra_path=extra_path)
    with lab.network():
        ended = lab.run_job(timeout=timeout, each_tick=each_tick)
        assert ended == expected, lab.logs(60)
    return lab


def last_state(lab: PodLab, *, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Tensors of the last step's checkpoint, read by torch alone."""
    state: dict[str, Any] = {}
    folder = lab.shared / "runs" / "lab" / "checkpoints" / f"step-{steps}"
    assert folder.is_dir(), lab.logs(60)
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=FileSystemReader(folder), planner=planner, no_dist=True)
    assert state
    return state


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit-identical."""
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype and tensor.numpy().tobytes() == other[name].numpy().tobytes()
        for name, tensor in one.items()
    )


def committed(lab: PodLab) -> list[int]:
    """Steps of committed checkpoints, while the Job runs."""
    folders = (lab.shared / "runs" / "lab" / "checkpoints").glob("step-*")
    return sorted(int(path.name[5:]) for path in folders if path.name[5:].isdigit())
