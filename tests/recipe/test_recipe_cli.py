"""`nvrx-run`: what it prints, what it exits with, and what it imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recipelab import RECIPES, ROOT, SMALL

from runner.cli import main
from runner.recipe.load import check_file
from runner.recipe.resolve import dump, resolve


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run(*arguments: object) -> int:
    """`main`, with the exit code of argparse's errors."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_valid_recipe_exits_0(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--validate", recipe) == 0
    assert capsys.readouterr().out == f"{recipe}: valid\n"


def test_every_shipped_recipe_is_valid_even_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--validate", "--strict", *RECIPES) == 0
    assert f"{len(RECIPES)} recipes: valid" in capsys.readouterr().out


def test_errors_of_all_files_come_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (tmp_path / f"{name}.yaml" for name in "abc")
    first.write_text(SMALL.replace("steps: 20", "steps: x").replace("every: 5", "evry: 5"))
    second.write_text(SMALL)
    third.write_text("- a\n")
    assert run("--validate", first, second, third, tmp_path / "d.yaml") == 2
    out = capsys.readouterr().out
    for words in (
        f"{first}:10:10: error[T203]",
        f"{first}:13:3: error[T201]",
        f"{third}:1:1: error[Y105]",
        "d.yaml: error[Y100]",
    ):
        assert words in out
    assert "4 recipes: 3 failed (4 errors, 0 warnings)" in out


def test_error_of_a_recipe_that_several_extend_comes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text(SMALL.replace("steps: 20", "steps: x"))
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(f"extends: base.yaml\nname: {name}\n")
    assert run("--validate", *(tmp_path / f"{name}.yaml" for name in ("base", "a", "b"))) == 2
    assert "3 recipes: 3 failed (1 error, 0 warnings)" in capsys.readouterr().out


def test_warning_exits_0_and_2_when_strict(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    override = ("--set", "checkpoint.every=100")
    assert run("--validate", recipe, *override) == 0
    assert "warning[R505]" in capsys.readouterr().out
    assert run("--validate", "--strict", recipe, *override) == 2
    assert "error[R505]" in capsys.readouterr().out


def test_a_recipe_as_a_run_resolved_it_has_no_warning(recipe: Path, tmp_path: Path) -> None:
    loaded, problems = check_file(recipe)
    assert loaded is not None, problems
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump(resolve(loaded.recipe, cwd=tmp_path)))
    assert run("--validate", "--strict", resolved) == 0


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("cluster.accelerator=gpu", "cuda"),  # by its letters it is nearer to cpu
        ("cluster.accelerator=GPU", "cuda"),
        ("training.precision=float32", "fp32"),
        ("model.param_dtype=fp32", "float32"),
    ],
)
def test_the_usual_word_for_a_choice_leads_to_it(
    recipe: Path, capsys: pytest.CaptureFixture[str], override: str, meant: str
) -> None:
    assert run("--validate", recipe, "--set", override) == 2
    assert f"help: did you mean `{meant}`?" in capsys.readouterr().out


def test_a_folder_in_place_of_a_recipe_is_told_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--explain", tmp_path) == 2
    assert "cannot be read: Is a directory\n  help: name a recipe in it" in capsys.readouterr().err


def test_text_marks_the_value(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(SMALL.replace("steps: 20", "steps: many"))
    run("--validate", recipe)
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"{recipe}:10:10: error[T203] training.steps: `many` does not fit here",
        "  10 |   steps: many",
        "     |          ^^^^",
    ]


def test_no_colour_codes_reach_a_pipe(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--validate", recipe, "--set", "training.steps=x")
    assert "\033" not in capsys.readouterr().out


def test_json_format(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(SMALL.replace("steps: 20", "steps: many"))
    assert run("--validate", "--format", "json", recipe) == 2
    [found] = json.loads(capsys.readouterr().out)
    assert found["code"] == "T203"
    assert (found["file"], found["line"], found["column"]) == (str(recipe), 10, 10)
    assert (found["path"], found["value"], found["severity"]) == ("training.steps", "`many`", "error")
    assert found["expected"] == "an integer of at least 1"
    assert run("--validate", "--format", "json", recipe, "--set", "training.steps=5") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_github_format(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(SMALL.replace("steps: 20", "steps: 'a%b'"))
    assert run("--validate", "--format", "github", recipe) == 2
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"::error file={recipe},line=10,col=10,endLine=10,title=T203::training.steps: `'a%25b'`"
    )


def test_github_format_of_an_override_names_no_file(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--validate", "--format", "github", recipe, "--set", "training.steps=x")
    assert capsys.readouterr().out.startswith("::error title=T203::training.steps: `x`")


def test_sarif_format_follows_the_standard(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--validate", "--format", "sarif", recipe, "--set", "training.global_batch_size=7") == 2
    log = json.loads(capsys.readouterr().out)
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    [result] = log["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("R201", "error")
    assert result["ruleId"] in {rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    region = result["locations"][0]["physicalLocation"]["region"]
    assert all(
        isinstance(region[key], int) and region[key] >= 1
        for key in ("startLine", "startColumn", "endLine", "endColumn")
    )
    assert run("--validate", "--format", "sarif", recipe) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("--validate",), ("a.yaml", "b.yaml"), ("--explain", "a.yaml", "b.yaml"), ("--emit-schema", "a.yaml"),
     ("--strict", "a.yaml"),
     ("--validate", "--explain", "a.yaml"), ("--validate", "--format", "xml", "a.yaml"), ("--nonsense",), ("-o",
     "x", "a.yaml"),
     ("--validat", "a.yaml")],
)  # fmt: skip
def test_wrong_arguments_exit_2_with_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nvrx-run: ")


@pytest.mark.parametrize(
    "action", [(), ("--explain",), ("--emit-command",), ("--emit-manifest",), ("--faults",)]
)
def test_bad_recipe_exits_2_without_a_traceback(
    action: tuple[str, ...], recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*action, recipe, "--set", "training.steps=many") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "error[T203] training.steps" in err
    assert "Traceback" not in err


def test_explain_shows_where_values_come_from_and_what_follows(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "recipes" / "llama8b-async-combined.yaml"
    assert run("--explain", path, "--set", "training.steps=1000") == 0
    out = capsys.readouterr().out
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert lines["steps"].split("1000", 1)[1].strip() == "--set training.steps=1000"
    assert lines["mode"].strip().endswith("llama8b-async-none.yaml:9")
    assert lines["keep_every"].strip().endswith("default")
    for words in (
        "8,030,261,248", "2 nodes of p5.48xlarge x 8 = 16", "131,072 tokens a step", "of 80 GiB on each",
        "32 of 32 interfaces",
        "staging buffers a rank", "20 in process after each start of the workers, 20 of the workers, then 6 pods",
    ):  # fmt: skip
        assert words in out


def test_explain_of_a_tiny_model_is_in_units_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """And leaves out what the machine does not have: g5 has no EFA in this size."""
    path = ROOT / "recipes" / "quickstart.yaml"
    over = ("cluster={nodes: 2, instance_type: g5.2xlarge}", "checkpoint.storage_bandwidth=1GB")
    assert run("--explain", path, *(word for text in over for word in ("--set", text))) == 0
    out = capsys.readouterr().out
    assert re.search(r"time +about [\d.]+ ms a step, [\d.]+ ms in all, at ", out), out
    assert re.search(r"[\d.]+ ms to write, every [\d.]+ ms", out), out
    _, _, follows = out.partition("\n  time ")
    assert not re.search(r"\de-\d", follows), follows
    assert "EFA" not in out


def test_explain_draws_the_timeouts_in_the_order_in_which_they_fire(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--explain", ROOT / "recipes" / "llama8b-async-combined.yaml")
    ladder = capsys.readouterr().out.split("TIMEOUTS")[1].split("\n\n")[0].splitlines()[1:]
    names = [line[40:].split(":")[0].strip() for line in ladder]
    order = ["inprocess.soft_timeout", "inprocess.hard_timeout", "inprocess.barrier_timeout",
    "process_group_timeout",
             "ft_launcher.rank_heartbeat_timeout", "ft_launcher.initial_rank_heartbeat_timeout"]  # fmt: skip
    assert [name for name in names if name in order] == order
    bars = [len(line[10:41].strip()) for line in ladder]
    assert bars == sorted(bars)


def test_explain_works_for_every_shipped_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for path in RECIPES:
        assert run("--explain", path) == 0
        assert "TIMEOUTS" in capsys.readouterr().out


def test_output_goes_to_a_file(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "schema.json"
    assert run("--emit-schema", "-o", target) == 0
    assert json.loads(target.read_text())["title"] == "nvrx-run recipe"
    assert run("--explain", recipe, "-o", tmp_path / "missing" / "x") == 2
    err = capsys.readouterr().err
    assert "cannot be written: No such file or directory; name a file in a folder that takes one" in err
    assert "Traceback" not in err


_HEAVY = ["torch", "transformers", "datasets", "numpy", "structlog", "rich", "nvidia_resiliency_ext"]


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [
        (["--help"], [*_HEAVY, "pydantic", "yaml"]),
        (["--version"], [*_HEAVY, "pydantic", "yaml"]),
        (["--validate", *map(str, RECIPES)], [*_HEAVY, "pydantic", "pydantic_core"]),
        (
            ["--validate", "--format", "sarif", "--strict", str(RECIPES[0]), "--set", "training.steps=x"],
            [*_HEAVY, "pydantic"],
        ),
        (["--explain", str(RECIPES[0])], [*_HEAVY, "pydantic"]),
        (["--emit-schema"], [*_HEAVY, "pydantic"]),
    ],
    ids=lambda value: value[0] if value and value[0].startswith("--") else "",
)
def test_heavy_libraries_are_not_imported(arguments: list[str], banned: list[str]) -> None:
    code = (
        "import sys\nfrom runner.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        f"print('IMPORTED', sorted(set({banned}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "IMPORTED []"


def test_a_folder_stands_for_the_recipes_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(SMALL)
    (tmp_path / "b.yml").write_text(SMALL.replace("steps: 20", "steps: x"))
    (tmp_path / "notes.txt").write_text("no recipe")
    assert run("--validate", tmp_path) == 2
    out = capsys.readouterr().out
    assert f"{tmp_path}/b.yml:10:10: error[T203]" in out
    assert "2 recipes: 1 failed (1 error, 0 warnings)" in out


def test_a_folder_without_recipes_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--validate", tmp_path) == 2
    assert f"{tmp_path}: no .yaml or .yml file is in this folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--validat", "r.yaml"], "nvrx-run: unrecognized arguments: --validat; did you mean --validate?"),
        (["--emit-manifst", "r.yaml"], "did you mean --emit-manifest?"),
        (["--zzzz", "r.yaml"], "nvrx-run --help lists what there is"),
        (["--export", "r.yaml"], "--export takes RECIPE STEP (a number, or latest), got: r.yaml"),
        (["--export", "r.yaml", "foo"], "--export takes RECIPE STEP (a number, or latest), got: r.yaml foo"),
    ],
)
def test_a_mistaken_option_is_one_line_that_helps(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("swap", [False, True])
def test_export_takes_recipe_and_step_in_either_order(
    recipe: Path, swap: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(recipe), "latest"]
    assert run("--export", *(reversed(words) if swap else words)) == 2
    assert "there is no checkpoint in " in capsys.readouterr().err


def test_a_reader_that_leaves_does_not_change_the_verdict(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(SMALL.replace("steps: 20", "steps: x"))
    process = subprocess.Popen(
        [sys.executable, "-m", "runner.cli", "--validate", str(bad)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 2
    assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("foo", "section.key=value, e.g. training.steps=100"),
        ("training.optimizer.betas.1=0.5", "set the whole list"),
        ("cluster.nvrx_version=banana", 'such as 0.4.1, 0.6.0 or "0.7"'),
        ("sharding.wrap={modules: []}", "an empty list does not fit here"),
    ],
)
def test_an_override_that_is_wrong_says_how_it_is_done(
    recipe: Path, override: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--validate", recipe, "--set", override) == 2
    assert says in capsys.readouterr().out


def test_an_override_of_an_item_that_a_list_does_not_have(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "training.optimizer.betas=[0.9, 0.95]", "--set", "training.optimizer.betas.5=0.9"]
    assert run("--validate", recipe, *changes) == 2
    assert "`5` is no item of this list, which has items 0 to 1" in capsys.readouterr().out


def test_every_pattern_of_a_setting_has_words(capsys: pytest.CaptureFixture[str]) -> None:
    from runner.recipe._table import TABLE
    from runner.recipe.words import describe

    def kinds(kind: object) -> list[tuple]:
        if not isinstance(kind, tuple):
            return []
        return [kind] * (bool(kind) and kind[0] == "str") + [k for part in kind for k in kinds(part)]

    texts = {
        describe(kind, TABLE) for fields in TABLE.values() for f, _ in fields.values() for kind in kinds(f)
    }
    assert len(texts) > 5
    assert [text for text in texts if "that matches" in text] == []
