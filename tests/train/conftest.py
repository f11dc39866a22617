"""Fixtures of the training tests: recipes as dictionaries, a process group of one, and several ranks as processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from runner.recipe.recipe import Recipe

BASE: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "architecture": {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        }
    },
    "dataset": {"source": "embedded", "sequence_length": 32, "max_documents": 20},
    "sharding": {"strategy": "fsdp"},
    "training": {"steps": 4, "global_batch_size": 8, "micro_batch_size": 2, "precision": "fp32"},
    "checkpoint": {"every": 2},
    "recovery": {"layer": "none"},
    "cluster": {"accelerator": "cpu"},
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the dotted keys of `changes` replaced."""
    result = copy.deepcopy(base)
    for dotted, value in changes.items():
        *path, leaf = dotted.split(".")
        section = result
        for key in path:
            section = section.setdefault(key, {})
        section[leaf] = value
    return result


@pytest.fixture
def make_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """A tiny recipe in a folder of its own, with dotted keys replaced: `make_recipe({"training.steps": 9})`."""

    def make(changes: dict[str, Any] | None = None) -> Recipe:
        return Recipe.model_validate(
            merged(BASE, {"output.folder": str(tmp_path / "run"), **(changes or {})})
        )

    return make


@pytest.fixture
def lone_rank(tmp_path: Path) -> Iterator[None]:
    """The default process group with this process as its only rank (gloo)."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
