"""Suites as files: what they mean, and what is said about each kind of mistake in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from suitelab import QUICKSTART, written

from runner.bench.cli import main
from runner.bench.matrix import cells_of
from runner.bench.suite import load_suite
from runner.errors import InputError
from runner.recipe.load import check_file


def test_pieces_merge_and_replace(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "common: {faults: !replace {count: 0, seed: 7}, training: {steps: 30, schedule: {kind: linear}}}\n"
        "experiments:\n"
        "  - name: e\n"
        "    common: &more {training: {steps: 40}}\n"
        "    axes:\n"
        "      a: {v: {<<: *more, faults: {count: 1}}}\n"
        "      b: {w: {training: {schedule: !replace {kind: constant}}, output: {log_level: debug}}}\n",
    )
    (one,) = cells_of(load_suite(path), tmp_path, ["training.optimizer.betas=[0.8, 0.9]"])
    (tmp_path / "recipe.yaml").write_text(one.recipe)
    loaded, _ = check_file(tmp_path / "recipe.yaml")
    assert loaded is not None
    recipe = loaded.root.plain()
    assert recipe["faults"] == {"count": 1, "seed": 7}  # neither types nor after_step of the quickstart
    assert recipe["training"]["steps"] == 40
    assert recipe["training"]["schedule"] == {"kind": "constant"}
    assert recipe["training"]["optimizer"] == {"lr": 0.002, "betas": [0.8, 0.9]}
    assert recipe["output"] == {"log_level": "debug", "folder": str(tmp_path / "e-v-w" / "run")}
    assert one.tree is not None and one.tree.plain() == recipe


def test_null_takes_a_name_and_a_folder_of_the_recipe_away_as_leaving_them_out_does(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"extends: {QUICKSTART}\noutput: {{folder: /elsewhere}}\n")
    rest = "experiments: [{name: e, axes: {a: {v: {output: {folder: null}}}}}]\n"
    for common in ("{}", "{name: null, output: {folder: null}}", "{output: {folder: ~, log_level: debug}}"):
        path = tmp_path / "suite.yaml"
        path.write_text(f"name: s\nrecipe: own.yaml\ncommon: {common}\n{rest}")
        (cell,) = cells_of(load_suite(path), tmp_path)
        assert cell.tree is not None
        recipe = cell.tree.plain()
        assert (recipe["name"], recipe["output"]["folder"]) == ("e-v", str(tmp_path / "e-v" / "run"))


def test_a_cells_recipe_is_whole_and_says_what_the_suite_said_whatever_its_texts_look_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe that it started from may change later; the cell is another one then, and is run again."""
    monkeypatch.setenv("WHERE", "/data/${x}")
    base = tmp_path / "base.yaml"
    base.write_text(QUICKSTART.read_text())
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nrecipe: base.yaml\nexperiments:\n  - name: e\n    axes: {a: {v: {\n"
        '      output: {progress: off}, checkpoint: {folder: "${WHERE}/1e5 # no"},\n'
        '      dataset: !replace {source: files, format: text, tokenizer: "1:30",\n'
        '                         paths: ["010", 1e-5x, "é: \\t*"]}}}}\n'
    )
    (before,) = cells_of(load_suite(path), tmp_path)
    assert "extends" not in before.recipe
    (tmp_path / "recipe.yaml").write_text(before.recipe)
    loaded, problems = check_file(tmp_path / "recipe.yaml")
    assert loaded is not None, problems
    assert before.tree is not None and loaded.root.plain() == before.tree.plain()
    assert loaded.recipe.dataset.paths == ("010", "1e-5x", "é: \t*")  # type: ignore[union-attr]
    assert (loaded.recipe.checkpoint.folder, loaded.recipe.output.progress) == ("/data/${x}/1e5 # no", "off")
    base.write_text(base.read_text().replace("steps: 60", "steps: 61"))
    (after,) = cells_of(load_suite(path), tmp_path)
    assert after.recipe != before.recipe


@pytest.mark.parametrize(("text", "told"), [
    ("timeout: 1:30\nrepeats: 010\nkeep_checkpoints: yes\nexperiments: [{name: e, axes: {a: {v: {}}}}]\n",
     ["3:10: timeout: YAML readers disagree about `1:30`; numbers have no base 60: write units, e.g. 1m30s",
      "4:10: repeats: YAML readers disagree about `010`; write a plain decimal number",
      "5:19: keep_checkpoints: YAML readers disagree about `yes`; only true and false are booleans"]),
    ("experiments:\n  - name: e\n    axes: {a: {v: {}, w: {}, v: {}}}\n",
     ["5:30: experiments[0].axes.a.v: key `v` is given twice, first at line 5; delete one of them"]),
    ("common: &c {training: *c}\nexperiments: []\n", ["3:23: `*c` contains itself"]),
    (f"experiments: [{{name: e, axes: {{a: {{v: {'{a: ' * 2000}1{'}' * 2000}}}}}}}]\n",
     ["3:183: is nested deeper than 40 levels"]),
    ("common: {name: x}\nexperiments: [{name: e, axes: {a: {v: {output: {folder: /x}}}}}]\n",
     ["3:10: common.name: every cell's run gets a name of its own; leave it out",
      "4:49: experiments[0].axes.a.v.output.folder: every cell's run gets a folder of its own; leave it out; --out "
      "says where all of them go"]),
    ("axes: {none: {seed: 010}}\nexperiments:\n  - {name: e, axis: {a: {v: {recovery: {layer: none}}}}}\n",
     ["3:1: axes: no such key; known here: name, recipe, common, repeats, timeout, max_restarts, keep_checkpoints, "
      "experiments",
      "5:5: experiments[0].axes: is missing; is it `axis`?",
      "5:15: experiments[0].axis: no such key; did you mean `axes`?; known here: name, common, axes"]),
    ("experiments:\n  - {name: e, axes: {}}\n  - {name: f, axes: {a: {}}}\n",
     ["4:15: experiments[0].axes: wants at least one", "5:22: experiments[1].axes.a: wants at least one"]),
    ('experiments: [{name: e, axes: {a: {v: {training: {seed: "\\0"}}}}}]\n',
     ["3:57: experiments[0].axes.a.v.training.seed: the text holds the control character U+0000, got \"\\0\"; "
      "delete it; only line breaks and tabs may be in a text"]),
])  # fmt: skip
def test_a_suite_is_read_as_strictly_as_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: list[str]
) -> None:
    path = written(tmp_path, text)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.replace(f"nvrx-bench: {path}:", "").splitlines() == told


def test_what_is_wrong_in_a_piece_of_a_recipe_is_shown_where_the_suite_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        tmp_path,
        "common:\n  restart: kubernetes\n  training:\n    stepz: 3\nexperiments:\n  - name: e\n    axes:\n"
        "      a:\n        v: {needs_gpu: 2}\n        w: {training: {seed: 010}}\n        x: {output: []}\n",
    )
    assert main([str(path), "--list", "--set", "name=x"]) == 2
    assert capsys.readouterr().err == (
        "nvrx-bench: --set name=x: name: every cell's run gets a name of its own; leave it out\n"
    )
    assert main([str(path), "--list", "--set", "training.steps=0"]) == 2
    err = capsys.readouterr().err
    places = [line.split(": ", 1)[1] for line in err.splitlines() if "error[" in line]
    assert [place.replace(f"{path}:", "").split(" error")[0] for place in places] == [
        "--set training.steps=0:", "4:3:", "6:5:", "11:13:", "12:30:", "13:21:",
    ]  # fmt: skip
    assert "cell e-v and 2 others:" in err and "cell e-x:" in err
    assert "did you mean `needs_gpus`?" in err and "it belongs under a value of an axis" in err
    assert "    v: {needs_gpu: 2}" in err  # the line itself


def test_a_name_that_no_run_may_have_is_refused_as_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"experiments: [{{name: {'e' * 30}, axes: {{a: {{{'v' * 30}: {{}}}}}}}}]\n")
    assert main([str(path), "--list"]) == 2
    assert "has at most 52 characters, and this has 61; shorten" in capsys.readouterr().err
    path = written(tmp_path, 'experiments: [{name: e, axes: {a: {"1.5": {}, b-: {}}}}]\n')
    assert main([str(path), "--list"]) == 2
    assert capsys.readouterr().err.count("wants lower-case letters, digits and inner dashes") == 2


def test_all_mistakes_of_a_suite_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: Bad Name\nrecipy: r.yaml\nrepeats: many\nexperiments:\n  - nam: saves\n    axes:\n      mode:\n"
        "        Sync!: {}\n        async: {needs_gpus: -1}\n      every: []\n  - 7\n"
    )
    assert main([str(path)]) == 2
    texts = "wants lower-case letters, digits and inner dashes, at most 52, as a run is called so"
    assert capsys.readouterr().err.replace(f"nvrx-bench: {path}:", "").splitlines() == [
        f"1:1: name: {texts}, not 'Bad Name'",
        "1:1: recipe: is missing; is it `recipy`?",
        "2:1: recipy: no such key; did you mean `recipe`?; known here: name, recipe, common, repeats, timeout, "
        "max_restarts, keep_checkpoints, experiments",
        "3:1: repeats: wants an integer, not 'many'",
        "5:5: experiments[0].nam: no such key; did you mean `name`?; known here: name, common, axes",
        "5:5: experiments[0].name: is missing; is it `nam`?",
        f"8:9: experiments[0].axes.mode.Sync!: {texts}, not 'Sync!'",
        "9:17: experiments[0].axes.mode.async.needs_gpus: input should be greater than or equal to 0, not -1",
        "10:7: experiments[0].axes.every: wants a mapping (key: value)",
        "11:5: experiments[1]: wants a mapping (key: value), not 7",
    ]


@pytest.mark.parametrize(("text", "what"), [("- a\n", "holds a list at the top"), ("", "is empty")])
def test_a_file_that_holds_no_suite_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert main([str(path)]) == 2
    wanted = "expected a mapping: name, recipe, experiments, ..."
    assert capsys.readouterr().err == f"nvrx-bench: {path}:1:1: {what}; {wanted}\n"


def test_two_cells_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path, "experiments:\n  - {name: e, axes: {a: {v: {}}}}\n  - {name: e, axes: {b: {v: {}}}}\n"
    )
    with pytest.raises(InputError, match="two cells are called e-v"):
        cells_of(load_suite(path), tmp_path)
