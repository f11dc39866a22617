"""What is installed on the machine against what a recipe asks of it."""

from __future__ import annotations

import pytest
from recipelab import ROOT

from runner.recipe.checks.versions import nccl_aborts_badly
from runner.recipe.installed import installed_problem
from runner.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("version", "bad"),
    [("2.28.2", False), ("2.28.3", True), ("2.28.5", True), ("2.28.8", True), ("2.28.8.post1", True),
     ("2.28.9", False),
     ("2.27.5", False), ("2.29.3", False), ("2.3.28", False), ("3.0.0", False)],
)  # fmt: skip
def test_nccl_releases_that_do_not_abort_cleanly(version: str, bad: bool) -> None:
    assert nccl_aborts_badly(version) == bad


@pytest.mark.parametrize(
    ("recipe", "gpu", "refused"),
    [("llama8b-async-inprocess", False, True), ("llama8b-async-combined", False, True),
     ("llama8b-async-ft_launcher", True, False),
     ("llama8b-async-none", True, False), ("quickstart", True, False)],
)  # fmt: skip
def test_bad_nccl_is_refused_where_in_process_restart_would_abort_it(
    recipe: str, gpu: bool, refused: bool
) -> None:
    loaded = load_recipe(ROOT / "recipes" / f"{recipe}.yaml", (), {}).recipe
    problem = installed_problem(loaded, "2.28.5", has_gpu=gpu)
    assert (problem is not None) == refused
    assert installed_problem(loaded, "2.28.9", has_gpu=gpu) is None
    assert installed_problem(loaded, None, has_gpu=gpu) is None
    if problem:
        assert "2.28.5" in problem
        assert "\n" not in problem


def test_an_accelerator_that_is_found_at_run_time_counts() -> None:
    overrides = ["cluster={accelerator: auto, processes_per_node: 2}"]
    recipe = load_recipe(ROOT / "recipes" / "quickstart.yaml", overrides, {}).recipe
    assert installed_problem(recipe, "2.28.5", has_gpu=True)
    assert installed_problem(recipe, "2.28.5", has_gpu=False) is None
