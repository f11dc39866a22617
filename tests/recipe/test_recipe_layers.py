"""`${VAR}`, `extends:` and `--set`: values from elsewhere keep the place that they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipelab import SMALL, check_text, line_of

from runner.recipe.load import check_file, load_recipe
from runner.recipe.problems import RecipeErrors


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


# -- variables ------------------------------------------------------------------------------------------------------


def test_variable_is_expanded_once(tmp_path: Path) -> None:
    text = SMALL + "output:\n  folder: ${ROOT}/runs\n"
    loaded, problems = check_text(tmp_path, text, environment={"ROOT": "/data/${HOME}"})
    assert not problems
    assert loaded is not None
    assert loaded.recipe.output.folder == "/data/${HOME}/runs"


def test_unset_variable_is_an_error_at_its_place(tmp_path: Path) -> None:
    text = SMALL + "output:\n  folder: ${UNSET}/ckpt\n"
    loaded, [problem] = check_text(tmp_path, text)
    assert loaded is None
    assert (problem.code, problem.path) == ("Y110", "output.folder")
    assert (problem.at.line, problem.at.column) == (line_of(text, "folder"), 11)
    assert "UNSET" in problem.message


def test_unset_variable_is_an_error_in_a_type_of_another_kind_too(tmp_path: Path) -> None:
    for setting in ("training.steps", "model.architecture.vocab_size", "sharding.strategy", "name"):
        _, problems = check_text(tmp_path, SMALL, f"{setting}=${{UNSET}}")
        assert [problem.code for problem in problems] == ["Y110"], problems


@pytest.mark.parametrize(("value", "folder"), [(None, "/d"), ("", "/d"), ("/x", "/x")])
def test_default_serves_where_a_variable_is_unset_or_empty(
    tmp_path: Path, value: str | None, folder: str
) -> None:
    environment = {} if value is None else {"ROOT": value}
    text = SMALL + "output:\n  folder: ${ROOT:-/d}\n"
    loaded, _ = check_text(tmp_path, text, environment=environment)
    assert loaded is not None
    assert loaded.recipe.output.folder == folder


def test_expanded_value_has_a_type(tmp_path: Path) -> None:
    text = SMALL.replace("steps: 20", "steps: ${STEPS:-30}").replace("every: 5", 'every: "${EVERY}"')
    loaded, problems = check_text(tmp_path, text, environment={"EVERY": "5"})
    assert [(problem.code, problem.path) for problem in problems] == [
        ("T203", "checkpoint.every")
    ]  # quoted: text
    loaded, problems = check_text(
        tmp_path, text.replace('"${EVERY}"', "${EVERY}"), environment={"EVERY": "5"}
    )
    assert loaded is not None
    assert (loaded.recipe.training.steps, loaded.recipe.checkpoint.every) == (30, 5)


def test_wrong_value_of_a_variable_shows_what_is_written(tmp_path: Path) -> None:
    text = SMALL.replace("steps: 20", "steps: ${STEPS}")
    _, [problem] = check_text(tmp_path, text, environment={"STEPS": "many"})
    assert (problem.code, problem.value) == ("T203", "`${STEPS}`")


def test_empty_variable_is_empty_text_not_null(tmp_path: Path) -> None:
    text = SMALL + "output:\n  folder: ${ROOT}\n"
    loaded, _ = check_text(tmp_path, text, environment={"ROOT": ""})
    assert loaded is not None
    assert loaded.recipe.output.folder == ""


def test_literal_dollar_brace(tmp_path: Path) -> None:
    text = SMALL + "output:\n  folder: $${ROOT}/$HOME/$\n"
    loaded, _ = check_text(tmp_path, text)
    assert loaded is not None
    assert loaded.recipe.output.folder == "${ROOT}/$HOME/$"


@pytest.mark.parametrize("raw", ["${}", "${1X}", "${X", "${X-y}", "${X:y}", "${ X }", "${X:-${Y}}"])
def test_malformed_variable_is_an_error(tmp_path: Path, raw: str) -> None:
    _, problems = check_text(
        tmp_path, SMALL + f"output:\n  folder: '{raw}'\n", environment={"X": "1", "Y": "2"}
    )
    assert [problem.code for problem in problems] == ["Y111"]


def test_keys_are_not_expanded(tmp_path: Path) -> None:
    _, [problem] = check_text(
        tmp_path, SMALL.replace("  steps: 20", "  steps: 20\n  ${KEY}: 3"), environment={"KEY": "seed"}
    )
    assert problem.code == "T201"


# -- extends --------------------------------------------------------------------------------------------------------


def test_extends_merges_deeply_and_each_value_keeps_its_file(tmp_path: Path) -> None:
    write(tmp_path, base=SMALL, child="extends: base.yaml\nname: child\ntraining:\n  steps: 30\n")
    loaded, problems = check_file(tmp_path / "child.yaml")
    assert not problems
    assert loaded is not None
    recipe = loaded.recipe
    assert (recipe.name, recipe.training.steps, recipe.training.global_batch_size) == ("child", 30, 8)
    assert Path(loaded.positions["training.steps"].file).name == "child.yaml"
    assert Path(loaded.positions["training.global_batch_size"].file).name == "base.yaml"


def test_error_in_an_extended_file_points_there(tmp_path: Path) -> None:
    write(tmp_path, base=SMALL.replace("steps: 20", "stps: 20"), child="extends: base.yaml\nname: child\n")
    _, problems = check_file(tmp_path / "child.yaml")
    [typo] = [problem for problem in problems if problem.code == "T201"]
    assert Path(typo.at.file).name == "base.yaml"
    assert typo.at.line == line_of(SMALL, "steps")


def test_paths_of_extends_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path, base=SMALL)
    write(
        tmp_path / "below",
        middle="extends: ../base.yaml\nname: middle\n",
        leaf="extends: middle.yaml\nname: leaf\n",
    )
    monkeypatch.chdir("/")
    assert load_recipe(tmp_path / "below" / "leaf.yaml").recipe.name == "leaf"


def test_replace_stands_instead_of_the_other_mapping(tmp_path: Path) -> None:
    write(
        tmp_path, base=SMALL.replace("layer: inprocess", "layer: inprocess\n  inprocess: {max_restarts: 3}")
    )
    write(tmp_path, merged="extends: base.yaml\nrecovery:\n  layer: none\n")
    write(tmp_path, replaced="extends: base.yaml\nrecovery: !replace\n  layer: none\n")
    _, [problem] = check_file(tmp_path / "merged.yaml")
    assert (problem.code, problem.path) == ("T201", "recovery.inprocess")
    assert load_recipe(tmp_path / "replaced.yaml").recipe.recovery.layer == "none"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a": "extends: a.yaml\n"}, "Y122"),
        ({"a": "extends: b.yaml\n", "b": "extends: c.yaml\n", "c": "extends: a.yaml\n"}, "Y122"),
        ({"a": "extends: nowhere.yaml\n"}, "Y123"),
        ({"a": "extends: .\n"}, "Y123"),
        ({"a": "extends: [b.yaml, c.yaml]\n"}, "Y121"),
        ({"a": "extends:\n"}, "Y121"),
        ({"a": "extends: 5\n"}, "Y121"),
        ({"a": "extends: b.yaml\n", "b": ""}, "Y103"),
        ({"a": "extends: b.yaml\n", "b": "- x\n"}, "Y105"),
        (
            {f"x{i}": f"extends: x{i + 1}.yaml\n" for i in range(15)}
            | {"a": "extends: x0.yaml\n", "x15": SMALL},
            "Y122",
        ),
    ],
)
def test_broken_chain_is_one_error(tmp_path: Path, files: dict[str, str], code: str) -> None:
    write(tmp_path, **files)
    _, problems = check_file(tmp_path / "a.yaml")
    assert [problem.code for problem in problems if problem.code.startswith("Y")] == [code]
    assert problems[0].at.line or code == "Y103"


def test_extends_may_not_be_a_setting_of_a_section(tmp_path: Path) -> None:
    _, [problem] = check_text(tmp_path, SMALL, "training.extends=other.yaml")
    assert problem.code == "T201"


# -- set ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.steps=7", ("training", "steps"), 7),
        ("training.optimizer.lr=1e-5", ("training", "optimizer", "lr"), 1e-5),
        ("training.clip_norm=null", ("training", "clip_norm"), None),
        ("training.clip_norm=", ("training", "clip_norm"), None),
        ('output.folder="7"', ("output", "folder"), "7"),
        ("output.folder=a=b", ("output", "folder"), "a=b"),
        ("output.folder= /x # comment", ("output", "folder"), "/x"),
        ("faults.types=[hang, exception]", ("faults", "types"), ("hang", "exception")),
        ("recovery={layer: none}", ("recovery", "layer"), "none"),
        ("training.optimizer.betas.1=0.5", None, None),
    ],
)
def test_override_is_typed_like_yaml(
    tmp_path: Path, override: str, path: tuple[str, ...] | None, value: object
) -> None:
    loaded, problems = check_text(tmp_path, SMALL, override)
    if path is None:
        assert problems
        return
    assert loaded is not None, problems
    found = loaded.recipe
    for part in path:
        found = getattr(found, part)
    assert found == value


def test_override_reaches_into_a_list_that_is_written(tmp_path: Path) -> None:
    text = SMALL.replace("global_batch_size: 8", "global_batch_size: 8\n  optimizer: {betas: [0.8, 0.9]}")
    loaded, _ = check_text(tmp_path, text, "training.optimizer.betas.1=0.5")
    assert loaded is not None
    assert loaded.recipe.training.optimizer.betas == (0.8, 0.5)


def test_later_override_wins(tmp_path: Path) -> None:
    loaded, _ = check_text(tmp_path, SMALL, "training.steps=7", "training.steps=9")
    assert loaded is not None
    assert loaded.recipe.training.steps == 9


@pytest.mark.parametrize(
    "override",
    [
        "training.steps",
        "=5",
        "training..steps=5",
        ".=5",
        "a: b",
        "",
        "training.steps={",
        "name=a\nx: y",
        "name=\t- a",
    ],
)
def test_malformed_override_is_an_error_that_says_so(tmp_path: Path, override: str) -> None:
    loaded, problems = check_text(tmp_path, SMALL, override)
    assert loaded is None
    assert any(problem.at.file == f"--set {override}" for problem in problems)


@pytest.mark.parametrize(
    ("override", "code"),
    [("training.steps=many", "T203"), ("trainin.steps=5", "T201"), ("training.stepz=5", "T201"),
     ("training.steps=-1", "T204"),
     ("recovery.layer=magic", "T205"), ("name.first=a", "T203"), ("output.folder=${UNSET}", "Y110"),
     ("training.steps=08", "T203")],
)  # fmt: skip
def test_error_of_an_override_says_set(tmp_path: Path, override: str, code: str) -> None:
    _, problems = check_text(tmp_path, SMALL, override)
    [problem] = problems
    assert (problem.code, problem.at.file) == (code, f"--set {override}")
    assert problem.line().startswith(f"--set {override}: error")


def test_load_recipe_raises_everything_at_once(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL)
    with pytest.raises(RecipeErrors) as caught:
        load_recipe(path, ["training.steps=many", "checkpoint.mode=fast"])
    assert len(caught.value.problems) == 2
    assert caught.value.exit_code == 2
    assert "training.steps" in str(caught.value)
    assert "checkpoint.mode" in str(caught.value)
