"""What the machine has against what a recipe asks of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipelab import ROOT

from runner.cli import main
from runner.errors import ExitCode
from runner.recipe.checks.versions import nccl_aborts_badly
from runner.recipe.installed import installed_problem, rank_problems
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


FOUND_LATER = ["cluster={accelerator: auto}", "faults={at: [{step: 3, rank: 1, type: exception}]}"]


@pytest.mark.parametrize(
    ("ranks", "codes"), [(1, ["R602", "R605"]), (2, []), (3, ["R201"])], ids=["one", "two", "three"]
)
def test_rules_that_need_the_ranks_are_checked_once_the_machine_tells_them(
    ranks: int, codes: list[str]
) -> None:
    loaded = load_recipe(ROOT / "recipes" / "quickstart.yaml", FOUND_LATER, {})  # nothing shows yet
    problems = rank_problems(loaded, FOUND_LATER, ranks)
    assert [problem.code for problem in problems] == codes
    assert all("processes_per_node" not in dict(problem.involved) for problem in problems)
    given = [*FOUND_LATER, "cluster.processes_per_node=2"]
    assert rank_problems(load_recipe(loaded.path, given, {}), given, ranks) == []


def test_a_run_with_faults_is_refused_where_the_machine_has_one_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    overrides = ["faults.count=2", f"output.folder={tmp_path / 'run'}", FOUND_LATER[0]]
    recipe = str(ROOT / "recipes" / "quickstart.yaml")
    assert main([recipe, *(word for text in overrides for word in ("--set", text))]) == ExitCode.BAD_RECIPE
    said = capsys.readouterr().err
    assert "error[R605] faults.count: the run has one process, and a fault needs peers" in said
    assert "not on this machine: cluster.processes_per_node is not given, which makes 1 of its 1 GPUs" in said
    assert not (tmp_path / "run").exists()
