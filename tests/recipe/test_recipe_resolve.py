"""A resolved recipe is independent of where it was written, and its dump loads back to an equal one."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from recipelab import RECIPES, SMALL, check_text

from runner.recipe.load import load_recipe, read_resolved
from runner.recipe.resolve import dump, resolve
from runner.recipe.units import format_duration, format_size, parse_duration, parse_size

SOME = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_dump_of_a_resolved_recipe_loads_back_equal(path: Path, tmp_path: Path) -> None:
    loaded = load_recipe(path, (), {}).recipe
    resolved = resolve(loaded, cwd=tmp_path)
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump(resolved), encoding="utf-8")
    assert read_resolved(copy) == resolved
    copy.write_text(dump(loaded), encoding="utf-8")
    assert load_recipe(copy, (), {}).recipe == loaded
    assert resolve(resolved, cwd=Path("/elsewhere")) == resolved


TRICKY = [
    "no", "1e5", "0755", "null", "~", "1:30", "true", "", " ", "a: b", "# x", "- a", "'", '"', "a\nb", "\u00e9\u2028",
    "${X}", "$${X}", "${", "*a", "&a", "!x", "%", "@", "`", "{a}", "[a]", "2026-11-30", "\t", "x" * 300,
    "=", "<<", "\U0001f600", "\\n",
]  # fmt: skip


@SOME
@given(
    text=st.one_of(st.sampled_from(TRICKY), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
)
def test_dump_keeps_any_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    loaded, problems = check_text(folder, SMALL)
    assert loaded is not None, problems
    recipe = loaded.recipe
    recipe = recipe.model_copy(update={"output": recipe.output.model_copy(update={"folder": text})})
    back, problems = check_text(folder, dump(recipe))
    odd = any(not character.isprintable() and character not in "\t\n" for character in text)
    assume(back is not None or not odd)  # not a text that a recipe could hold
    assert back is not None, problems
    assert back.recipe == recipe


@SOME
@given(number=st.floats(min_value=5e-324, max_value=9.9))
def test_dump_keeps_any_number(number: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    loaded, _ = check_text(folder, SMALL, f"training.optimizer.lr={number!r}")
    assert loaded is not None
    back, problems = check_text(folder, dump(loaded.recipe))
    assert back is not None, problems
    assert back.recipe.training.optimizer.lr == number


def test_paths_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    text = SMALL.replace(
        "source: embedded", "source: files\n  format: text\n  paths: [data/*.txt, ../up/x.txt, /abs/y.txt]"
    )
    loaded, problems = check_text(
        tmp_path, text, "model={name: models/mine}", "dataset.tokenizer=./tok", "checkpoint.folder=ck"
    )
    assert loaded is not None, problems
    recipe = resolve(loaded.recipe, cwd=tmp_path)
    assert recipe.model.name == f"{tmp_path}/models/mine"
    assert recipe.dataset.tokenizer == f"{tmp_path}/tok"
    assert recipe.dataset.paths == (f"{tmp_path}/data/*.txt", f"{tmp_path.parent}/up/x.txt", "/abs/y.txt")
    assert recipe.checkpoint.folder == f"{tmp_path}/ck"
    assert recipe.output.folder == f"{tmp_path}/runs/small"
    assert loaded.recipe.output.folder is None


def test_hub_ids_stay(tmp_path: Path) -> None:
    loaded, _ = check_text(
        tmp_path, SMALL, "model={name: meta-llama/Llama-3.1-8B}", "dataset.tokenizer=bytes"
    )
    assert loaded is not None
    recipe = resolve(loaded.recipe, cwd=tmp_path)
    assert (recipe.model.name, recipe.dataset.tokenizer) == ("meta-llama/Llama-3.1-8B", "bytes")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("250ms", 0.25), ("1d", 86400),
     (" 5 s ", 5), ("1.5h", 5400), (0, 0), (1.5, 1.5)],
)  # fmt: skip
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "5",
        "5x",
        "-5s",
        "5s5",
        "5s,",
        True,
        None,
        -1,
        10**10,
        float("nan"),
        float("inf"),
        "\u0665s",
        [],
    ],
)
def test_no_durations(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(value)


@SOME
@given(seconds=st.timedeltas(timedelta(0), timedelta(days=4000)))
def test_formatted_duration_reads_back(seconds: timedelta) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("value", "size"),
    [("64GiB", 64 << 30), ("500MB", 500 * 10**6), ("1.5 KiB", 1536), ("7", 7), (7, 7), ("7B", 7)],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize(
    "value", ["", "GiB", "5 parsecs", "-5GiB", "5gib", True, None, -1, 1.5, 2**63, "9" * 30, "1e3"]
)
def test_no_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(value)


def test_sizes_for_people() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 5 << 30, 3 << 40, 5000 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "5 GiB", "3 TiB", "5000 TiB",
    ]  # fmt: skip


def test_dump_is_plain_yaml_for_other_readers(tmp_path: Path) -> None:
    import yaml

    loaded, _ = check_text(tmp_path, SMALL)
    assert loaded is not None
    assert yaml.safe_load(dump(loaded.recipe)) == json.loads(loaded.recipe.model_dump_json())
