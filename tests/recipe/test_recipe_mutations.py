"""Any mutation of a valid recipe gives success or an error that points at the mutated line: never a traceback, never a
key that is dropped without a word. Besides, the quick check and the pydantic models agree on every mutant."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path as FilePath
from typing import Any

import pytest
import trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trees import CLUSTER, LAPTOP, Path, Raw, paths, removed, renamed, render, replaced

from runner.recipe.load import LoadedRecipe, check_file
from runner.recipe.node import Doubtful, dotted, find
from runner.recipe.problems import Problem
from runner.recipe.recipe import Recipe
from runner.recipe.table import table
from runner.recipe.yaml import read_bytes

MUTANTS = os.environ.get("NVRX_RUN_MUTANTS")  # more of them, and others each time
MANY = settings(
    max_examples=int(MUTANTS or 700),
    derandomize=MUTANTS is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
BASES = {"laptop": LAPTOP, "cluster": CLUSTER}

SNIPPETS = [
    "yes", "no", "on", "off", "None", "null", "~", "", "true", "false", "08", "0755", "0x10", "1_000", "1:30:00",
    "nan", ".inf",
    "1e400", "1e-5", "2e5", "0", "-1", "1", "2", "3", "7", "1.5", "-0.0", "99999999999999999999",
    "1" * 500, "text", '""', '"8"',
    "' '", "90s", "20m", "1h30m", "-5s", "5 parsecs", "64GiB", "-1GiB", "[]", "{}", "[1, 2]", "[a]", "[[]]",
    "{a: 1}", "{a: {b: []}}",
    "[null]", "{source: hub}", "{layer: none}", "{strategy: ddp}", "[exception]", "2026-11-30", "*", "!!int 3",
    "!replace {}",
    "|\n      block", "'\u00fc'", "/", "../..", "p5.48xlarge", "${UNSET}", "${SET}", "$${X}", "ddp", "cosine",
    "inprocess",
]  # fmt: skip
raw_values = st.one_of(
    st.sampled_from(SNIPPETS).map(Raw),
    st.integers().map(lambda number: Raw(str(number))),
    st.floats().map(lambda number: Raw(repr(number))),
    st.text(max_size=20).map(lambda text: Raw(__import__("json").dumps(text, ensure_ascii=False))),
    st.lists(st.one_of(st.integers(-5, 5), st.booleans(), st.none()), max_size=3),
)
letters = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)


_folder = tempfile.TemporaryDirectory(prefix="mutants-")  # removed when Python ends


def _file() -> FilePath:
    return FilePath(_folder.name) / "recipe.yaml"


def check(text: str) -> tuple[LoadedRecipe | None, list[Problem]]:
    _file().write_text(text, encoding="utf-8")
    return check_file(_file(), environment={"SET": "5"})


def lines_of(problem: Problem) -> set[int]:
    places = [problem.at, *([problem.also] if problem.also else []), *(at for _, at in problem.involved)]
    return {line for at in places for line in range(at.line, at.end_line + 1)}


def section_of(tree: dict[str, Any], path: Path) -> set[str] | None:
    """The settings of the section that `path` is a key of; None inside a free mapping."""
    kind: Any = ("section", "Recipe")
    value: Any = tree
    for part in path[:-1]:
        value = value[part]
        kind = _inner(kind, part, value, tree)
        if kind is None:
            return None
    names = _sections(kind, value)
    return set().union(*(table()[name] for name in names)) if names else None


def _inner(kind: Any, part: str | int, value: Any, tree: dict[str, Any]) -> Any:
    names = _sections(kind, None)
    if names:
        for name in names:
            if part in table()[name]:
                return table()[name][part][0]
        return None
    if kind[0] == "optional":
        return _inner(kind[1], part, value, tree)
    if kind[0] == "list":
        return kind[1]
    if kind[0] == "dict":
        return kind[2] if kind[2][0] == "section" else None
    return None


def _sections(kind: Any, value: Any) -> list[str]:
    if kind[0] == "section":
        return [kind[1]]
    if kind[0] == "optional":
        return _sections(kind[1], value)
    if kind[0] == "tagged":
        return (
            [kind[2][value[kind[1]]]]
            if isinstance(value, dict) and value.get(kind[1]) in kind[2]
            else list(kind[2].values())
        )
    if kind[0] == "oneof":
        found = [inner[1] for inner in kind[1] if inner[0] == "section"]
        return [name for name in found if not value or set(value) & set(table()[name])]
    return []


def agree(text: str, loaded: LoadedRecipe | None, problems: list[Problem]) -> None:
    """The pydantic models accept what the quick check accepts, and nothing else."""
    if any(problem.code.startswith("Y") for problem in problems):
        return
    root, _ = read_bytes(text.encode(), "mutant", {"SET": "5"})
    doubtful = any(isinstance(node.value, Doubtful) for _, node in root.walk())
    typed = not any(problem.code.startswith("T") for problem in problems)
    try:
        Recipe.model_validate(root.plain())
    except ValidationError as error:
        assert not typed, f"pydantic refuses what the quick check accepts:\n{text}\n{error}"
    else:
        assert typed or doubtful, (
            f"the quick check refuses what pydantic accepts:\n{text}\n{problems[0].line()}"
        )
    if loaded is not None:
        assert loaded.recipe.name


@pytest.mark.parametrize("base", BASES)
def test_the_unmutated_recipe_is_valid_without_a_warning(base: str) -> None:
    loaded, problems = check(render(BASES[base])[0])
    assert not problems, [problem.line() for problem in problems]
    assert loaded is not None
    assert loaded.recipe.name == BASES[base]["name"]


@pytest.mark.parametrize("base", BASES)
@MANY
@given(data=st.data())
def test_renamed_key_is_refused_at_its_line(base: str, data: st.DataObject) -> None:
    tree = BASES[base]
    path = data.draw(st.sampled_from([p for p in paths(tree) if isinstance(p[-1], str)]))
    key = str(path[-1])
    at = data.draw(st.integers(0, len(key)))
    new = data.draw(
        st.one_of(
            letters,
            letters.map(lambda extra: key[:at] + extra[0] + key[at:]),
            st.just(key[:at] + key[at + 1 :]),
            st.just(key.upper()),
            st.just(key.replace("_", "-")),
            st.just(key + " "),
        )
    )
    siblings = trees.get(tree, path[:-1])
    if not new.strip() or new.strip() in siblings:
        return
    text, places = render(renamed(tree, path, new))
    loaded, problems = check(text)
    agree(text, loaded, problems)
    known = section_of(tree, path)
    written = new.strip()
    line = places[(*path[:-1], new)]
    if known is not None and written not in known:
        found = [p for p in problems if p.at.line == line and p.severity == "error"]
        assert found, (text, [problem.line() for problem in problems])
    elif loaded is not None:
        node = find(loaded.root, (*path[:-1], written))
        assert node is not None, text
    else:
        assert any(line in lines_of(p) or p.path.startswith(dotted(path[:-1])) for p in problems), text


@pytest.mark.parametrize("base", BASES)
@MANY
@given(data=st.data())
def test_changed_value_is_taken_or_refused_at_its_line(base: str, data: st.DataObject) -> None:
    tree = BASES[base]
    path = data.draw(st.sampled_from(paths(tree)))
    value = data.draw(raw_values)
    text, places = render(replaced(tree, path, value))
    loaded, problems = check(text)
    agree(text, loaded, problems)
    line = places[path]
    if loaded is not None:
        node = find(loaded.root, path)
        assert node is not None
        assert node.at.line == line
        return
    errors = [problem for problem in problems if problem.severity == "error"]
    below = {number for other, number in places.items() if other[: len(path)] == path}
    touched = {line, *below, *range(line, line + str(value).count("\n") + 1)}
    following = (
        line + str(value).count("\n") + 1
    )  # where a broken value makes the parser stumble over the next line
    assert any(
        touched & lines_of(problem) or (problem.code == "Y106" and problem.at.line <= following)
        for problem in errors
    ), f"line {line} of\n{text}\n" + "\n".join(problem.line() for problem in errors)


@pytest.mark.parametrize("base", BASES)
@MANY
@given(data=st.data())
def test_number_out_of_range_is_taken_or_refused_at_its_line(base: str, data: st.DataObject) -> None:
    tree = BASES[base]
    numeric = [
        p
        for p in paths(tree)
        if isinstance(trees.get(tree, p), int | float) and not isinstance(trees.get(tree, p), bool)
    ]
    path = data.draw(st.sampled_from(numeric))
    old = trees.get(tree, path)
    value = data.draw(
        st.one_of(
            st.sampled_from(
                [0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 0.0, 1e-300, 1e300, 1e-9]
            ),
            st.integers(-(2**70), 2**70),
            st.integers(0, 300),
            st.floats(allow_nan=False, allow_infinity=False),
        ).filter(lambda number: number != old)
    )
    text, places = render(replaced(tree, path, Raw(repr(value))))
    loaded, problems = check(text)
    agree(text, loaded, problems)
    errors = [problem for problem in problems if problem.severity == "error"]
    if loaded is None:
        assert any(places[path] in lines_of(problem) for problem in errors), text + "\n".join(
            p.line() for p in errors
        )
    else:
        node = find(loaded.root, path)
        assert node is not None
        assert node.value == value


@pytest.mark.parametrize("base", BASES)
def test_each_section_and_setting_removed(base: str) -> None:
    """A required one is named; another takes its default, or the rules say what is missing now."""
    tree = BASES[base]
    for path in paths(tree):
        text, _ = render(removed(tree, path))
        loaded, problems = check(text)
        agree(text, loaded, problems)
        if loaded is None:
            assert all(problem.at.line >= 1 for problem in problems)
        required = [p for p in problems if p.code == "T202"]
        if len(path) == 1 and path[0] in (
            "name",
            "model",
            "dataset",
            "sharding",
            "training",
            "checkpoint",
            "recovery",
        ):
            assert [p.path for p in required if p.path == path[0]] == [path[0]]


@pytest.mark.parametrize("base", BASES)
def test_each_key_given_twice(base: str) -> None:
    text, places = render(BASES[base])
    lines = text.splitlines()
    for path, line in places.items():
        if not isinstance(path[-1], str) or lines[line - 1].endswith(":"):
            continue
        doubled = "\n".join([*lines[:line], lines[line - 1], *lines[line:]]) + "\n"
        _, problems = check(doubled)
        found = [problem for problem in problems if problem.code == "Y112"]
        assert [(p.at.line, p.also and p.also.line, p.path) for p in found] == [
            (line + 1, line, dotted(path))
        ]
