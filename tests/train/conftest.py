"""Fixtures of the training tests: recipes as dictionaries, a process group of one, and several ranks as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tiny_recipe import TINY, changed

from runner.recipe.recipe import Recipe


@pytest.fixture
def make_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """A tiny recipe in a folder of its own, with dotted keys replaced: `make_recipe({"training.steps": 9})`."""

    def make(changes: dict[str, Any] | None = None) -> Recipe:
        own = {"model.architecture.attention_dropout": 0.0, "output.folder": str(tmp_path / "run")}
        return Recipe.model_validate(changed(TINY, own | (changes or {})))

    return make


@pytest.fixture
def lone_rank(tmp_path: Path) -> Iterator[None]:
    """The default process group with this process as its only rank (gloo)."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
