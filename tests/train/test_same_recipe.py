"""A node that starts with another recipe than the first one does not train by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from runner.errors import InputError
from runner.recipe.load import load_recipe
from runner.train.same_recipe import check_same_recipe

QUICK = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def test_ranks_with_another_recipe_than_rank_0_are_refused_and_every_setting_is_named() -> None:
    store = dist.HashStore()

    def meet(rank: int, *overrides: str) -> None:
        life: Any = SimpleNamespace(rank=rank, world_size=3, store=store)
        check_same_recipe(load_recipe(QUICK, overrides).recipe, life)

    meet(0)
    meet(1, "checkpoint.folder=/elsewhere", "output.log_level=debug")
    with pytest.raises(InputError) as refused:
        meet(2, "training.seed=7", "training.steps=90", "training.optimizer.lr=1e-3")
    for said in ("rank 2 (", "seed: 0 -> 7", "steps: 60 -> 90", "lr: 0.002 -> 0.001", "the same --set"):
        assert said in str(refused.value)
