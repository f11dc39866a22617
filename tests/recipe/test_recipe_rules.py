"""Each rule across sections has a case that breaks exactly it, and a number that stays."""

from __future__ import annotations

import pytest
from recipelab import RECIPES, ROOT
from rule_cases import CASES, FILE_CODES

from runner.recipe.checks import RULES
from runner.recipe.load import check_file


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("code", sorted(CASES))
def test_rule_is_broken_alone(code: str) -> None:
    path, overrides = CASES[code]
    loaded, problems = check_file(path, overrides, environment={})
    assert [problem.code for problem in problems] == [code], [problem.line() for problem in problems]
    [problem] = problems
    assert problem.severity == RULES[code].severity
    assert (loaded is None) == (problem.severity == "error")
    assert problem.path
    assert problem.at.file


@pytest.mark.parametrize("code", sorted(CASES))
def test_rule_blames_something_that_is_written(code: str) -> None:
    """The finding points at a value, or at a section's key, never at nothing; the override is among what matters."""
    path, overrides = CASES[code]
    [problem] = check_file(path, overrides, environment={})[1]
    places = [problem.at, *([problem.also] if problem.also else []), *(at for _, at in problem.involved)]
    assert any(at.file.startswith("--set") for at in places), problem


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipe_validates_without_a_warning(path: object) -> None:
    loaded, problems = check_file(str(path), environment={})
    assert not problems, [problem.line() for problem in problems]
    assert loaded is not None
    assert loaded.recipe.name


def test_the_recipes_of_the_article_are_there() -> None:
    names = {path.stem for path in RECIPES}
    assert names >= {
        "quickstart", "llama8b-sync-none", "llama8b-async-none", "llama8b-async-inprocess",
        "llama8b-async-ft_launcher",
        "llama8b-async-combined", "gpt2-sync-none", "gpt2-async-inprocess", "gpt2-async-ft_launcher",
        "gpt2-async-combined",
    }  # fmt: skip


@pytest.mark.parametrize("instance", ["p4de.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge"])
@pytest.mark.parametrize(
    "layer", ["sync-none", "async-none", "async-inprocess", "async-ft_launcher", "async-combined"]
)
def test_moving_to_another_instance_is_one_override(instance: str, layer: str) -> None:
    loaded, problems = check_file(f"recipes/llama8b-{layer}.yaml", [f"cluster.instance_type={instance}"], {})
    assert loaded is not None, [problem.line() for problem in problems]
    assert loaded.recipe.cluster.instance_type == instance


def test_codes_of_files_and_values_are_explained() -> None:
    import re

    source = "".join(path.read_text() for path in (ROOT / "runner" / "recipe").glob("*.py"))
    assert set(re.findall(r'"([YT][0-9]{3})"', source)) == set(FILE_CODES)


def test_rules_run_beside_errors_in_other_settings() -> None:
    _, problems = check_file(
        "recipes/quickstart.yaml", ["training.steps=many", "recovery.inprocess.soft_timeout=2m"], {}
    )
    assert {problem.code for problem in problems} == {"R101", "T203"}


def test_finding_about_a_credential_does_not_show_it() -> None:
    from runner.recipe import render

    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    _, problems = check_file(
        "recipes/gpt2-sync-none.yaml", [f"cluster.kubernetes.env={{HF_TOKEN: {secret}}}"], {}
    )
    assert [problem.code for problem in problems] == ["R724"]
    hidden = [problem._replace(at=problem.at._replace(file="--set ...")) for problem in problems]
    for shown in (render.text(hidden), render.github(hidden), render.sarif(hidden, version="0")):
        assert secret not in shown


def test_a_value_with_a_newline_does_not_break_a_message_in_two() -> None:
    _, problems = check_file("recipes/quickstart.yaml", ['sharding.wrap={modules: ["Llama\\nLayer"]}'])
    assert [problem.code for problem in problems] == ["R304"]
    assert "Llama\\nLayer" in problems[0].message and "\n" not in problems[0].message
