"""Files that are no recipe: one line each, with the place; never a traceback."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from recipelab import SMALL, check_text, line_of

from runner.recipe.load import check_file
from runner.recipe.problems import Problem


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, [problem.line() for problem in problems]
    assert "\n" not in problems[0].line()
    return problems[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "Y103"), ("# nothing\n", "Y103"), ("---\n", "Y103"), ("null\n", "Y103"), ("\n\n  \n", "Y103"),
     ("---\n...\n", "Y103"),
     ("- a\n", "Y105"), ("[a, b]\n", "Y105"), ("just text\n", "Y105"), ("42\n", "Y105"), ('"quoted"\n', "Y105"),
     ("a: 1\n---\nb: 2\n", "Y104"), (SMALL + "---\n" + SMALL, "Y104"), (SMALL + "...\n---\n", "Y104")],
)  # fmt: skip
def test_top_level_is_one_mapping(tmp_path: Path, text: str, code: str) -> None:
    loaded, problems = check_text(tmp_path, text)
    problem = only(problems)
    assert (loaded, problem.code) == (None, code)
    assert str(tmp_path / "recipe.yaml") in problem.line()
    if code != "Y104":
        assert "sections" in (problem.expected or "")


def test_one_document_may_have_markers(tmp_path: Path) -> None:
    loaded, problems = check_text(tmp_path, "---\n" + SMALL + "...\n")
    assert loaded is not None
    assert not problems


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (b"name: a\ntraining:\n\tsteps: 3\n", (3, 1), "tab"),
        (b"name: a\ntraining:\n  steps: 3\n  \tseed: 3\n", (4, 3), "tab"),
        (b"name:\ta\n\tmodel: x\n", (2, 1), "tab"),
        ("name: caf\u00e9\n".encode("latin-1"), (1, 10), "UTF-8"),
        (b"name: a\n# \xe4\xf6\n", (2, 3), "UTF-8"),
        ("name: a\n".encode("utf-16"), (1, 1), "UTF-16"),
        (b"name: a\x00b\n", (1, 8), "U+0000"),
        (b"name: a\nmodel: \x1b[31m\n", (2, 8), "U+001B"),
        ("name: \u201ca\u201d\nmodel: {name: \u201cx, y: \u201dz\n".encode(), (3, 1), "YAML"),
        (b"name: 'a\nmodel: b\n", (1, 7), "quote"),
        (b"name: [a, b\n", (2, 1), "YAML"),
        (b"name: a\n  model: b\n", (2, 8), "YAML"),
        (b"name: a: b\n", (1, 8), "YAML"),
        (b"name: &a x\nmodel: *b\n", (2, 8), "anchor"),
        (b"name: a\n? [x]\n: 1\n", (2, 3), "key"),
        (b"name: a\nmodel\ndataset: x\n", (2, 1), "without `:`"),
        (b"name: @a\n", (1, 7), "YAML"),
        (b"name: %a\n", (1, 7), "YAML"),
    ],
)
def test_broken_text_is_one_line_with_its_place(
    tmp_path: Path, text: bytes, place: tuple[int, int], words: str
) -> None:
    loaded, problems = check_text(tmp_path, text)
    problem = only(problems)
    assert loaded is None
    assert (problem.at.line, problem.at.column) == place, problem.line()
    assert words in problem.line()


def test_curly_quotes_are_named(tmp_path: Path) -> None:
    _, problems = check_text(tmp_path, "name: a\nmodel: {name: \u201cmeta: llama\u201d}\n")
    assert any("curly quotes" in problem.line() for problem in problems)


def test_curly_quoted_name_is_refused_where_it_stands(tmp_path: Path) -> None:
    text = SMALL.replace("name: small", "name: \u201csmall\u201d")
    _, problems = check_text(tmp_path, text)
    assert (only(problems).path, problems[0].at.line) == ("name", 1)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    loaded, problems = check_text(tmp_path, codecs.BOM_UTF8 + SMALL.encode())
    assert loaded is not None
    assert not problems


def test_windows_line_ends_keep_the_lines_right(tmp_path: Path) -> None:
    text = SMALL.replace("steps: 20", "stps: 20").replace("\n", "\r\n")
    _, problems = check_text(tmp_path, text)
    assert [problem.at.line for problem in problems] == [line_of(SMALL, "steps")]


def test_missing_file_and_folder_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.yaml", tmp_path):
        loaded, problems = check_file(path)
        assert loaded is None
        assert (only(problems).code, problems[0].at.file) == ("Y100", str(path))


def test_key_given_twice_names_both_places(tmp_path: Path) -> None:
    text = SMALL.replace("  steps: 20\n", "  steps: 20\n  seed: 1\n  steps: 30\n")
    _, problems = check_text(tmp_path, text)
    problem = only(problems)
    assert (problem.code, problem.path) == ("Y112", "training.steps")
    assert problem.also is not None
    assert (problem.also.line, problem.at.line) == (line_of(SMALL, "steps"), line_of(SMALL, "steps") + 2)


@pytest.mark.parametrize("second", ['"steps": 3', "'steps': 3", "? steps\n  : 3"])
def test_key_given_twice_is_seen_in_any_spelling(tmp_path: Path, second: str) -> None:
    _, problems = check_text(tmp_path, SMALL.replace("  steps: 20\n", f"  steps: 20\n  {second}\n"))
    assert only(problems).code == "Y112"


def test_merge_keys_and_anchors_work(tmp_path: Path) -> None:
    text = SMALL.replace(
        "training:\n  steps: 20\n",
        "training:\n  <<: [{steps: 7, seed: 3}, {seed: 4, log_every: 2}]\n  steps: 20\n",
    ).replace("every: 5", "every: &five 5\n  snapshot_every: *five")
    loaded, problems = check_text(tmp_path, text)
    assert not problems
    assert loaded is not None
    training, checkpoint = loaded.recipe.training, loaded.recipe.checkpoint
    assert (training.steps, training.seed, training.log_every) == (20, 3, 2)
    assert (checkpoint.every, checkpoint.snapshot_every) == (5, 5)


def test_misspelt_key_behind_an_anchor_is_refused_where_it_stands(tmp_path: Path) -> None:
    text = SMALL.replace("training:\n", "training:\n  <<: {sed: 3}\n")
    _, problems = check_text(tmp_path, text)
    assert (only(problems).code, problems[0].at.line) == ("T201", line_of(text, "<<"))


@pytest.mark.parametrize(
    "text", ["name: !!python/object:os.system x", "name: !!str 5", "name: !x y", "model: !replace x"]
)
def test_tags_are_refused(tmp_path: Path, text: str) -> None:
    _, problems = check_text(tmp_path, text)
    assert any(problem.code == "Y109" and problem.at.line == 1 for problem in problems)


@pytest.mark.parametrize(
    ("key", "near"),
    [("rank_hearbeat_timeout", "rank_heartbeat_timeout"), ("max_restart", "max_restarts"), ("termtimeout",
     "term_timeout"),
     ("Term_Timeout", "term_timeout"), ("term-timeout", "term_timeout")],
)  # fmt: skip
def test_misspelt_key_is_refused_with_the_nearest_valid_one(tmp_path: Path, key: str, near: str) -> None:
    text = SMALL.replace("layer: inprocess", f"layer: ft_launcher\n  ft_launcher:\n    {key}: 5")
    _, problems = check_text(tmp_path, text)
    problem = only(problems)
    assert (problem.code, problem.path) == ("T201", f"recovery.ft_launcher.{key}")
    assert (problem.at.line, problem.at.column) == (line_of(text, key), 5)
    assert f"`{near}`" in (problem.hint or "")


def test_setting_of_another_layer_is_refused_with_its_place(tmp_path: Path) -> None:
    text = SMALL.replace(
        "layer: inprocess", "layer: inprocess\n  ft_launcher: {max_restarts: 3}\n  soft_timeout: 5s"
    )
    _, problems = check_text(tmp_path, text)
    hints = {problem.path: problem.hint or "" for problem in problems}
    assert "layer: ft_launcher" in hints["recovery.ft_launcher"]
    assert "recovery.inprocess.soft_timeout" in hints["recovery.soft_timeout"]


def test_every_field_with_a_default_refuses_a_typo(tmp_path: Path) -> None:
    """No key is ignored, whatever the section: each known key with a letter doubled is an error at its line."""
    from runner.recipe.table import table

    for section, name in (("training", "TrainingSection"), ("checkpoint", "CheckpointSection"), ("output",
    "OutputSection"),
                          ("faults", "FaultsSection"), ("cluster", "ClusterSection"), ("model",
                          "ModelSection")):  # fmt: skip
        for key in table()[name]:
            typo = key + key[-1]
            if typo in table()[name]:
                continue
            _, problems = check_text(tmp_path, SMALL, f"{section}.{typo}=1")
            assert [(p.code, p.path) for p in problems if p.path == f"{section}.{typo}"] == [
                ("T201", f"{section}.{typo}")
            ]
            assert any(f"`{key}`" in (p.hint or "") for p in problems)


@pytest.mark.parametrize(
    "text",
    [SMALL, "", "- a\n", "a: 1\n---\nb: 2\n", "name: a\n\tmodel: x\n", "name: 'a\nb: c\n", "a: *b\n", "name: [a, b\n",
     "a: &a [*a]\n", SMALL.replace("steps: 20", "stps: 08"), SMALL + "output: {folder: \"a\\tb\", progress: 'off'}\n",
     "{" * 200, "? [x]\n: 1\n", "name: !!str x\n", SMALL.replace("\n", "\r\n"), "\u00e9: \u2028\n"],
)  # fmt: skip
def test_findings_are_the_same_without_the_c_library(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    from runner.recipe import yaml as loader

    fast = check_text(tmp_path, text)
    monkeypatch.setattr(loader, "_Loader", yaml.SafeLoader)
    slow = check_text(tmp_path, text)
    assert (fast[0] is None) == (slow[0] is None)
    assert [(p.code, p.path, p.at.line, p.value) for p in fast[1]] == [
        (p.code, p.path, p.at.line, p.value) for p in slow[1]
    ]
