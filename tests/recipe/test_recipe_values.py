"""What an unquoted value means: the numbers that people write, and nothing that YAML readers disagree about."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipelab import SMALL, check_text, line_of

from runner.recipe.explain import explain
from runner.recipe.node import Doubtful
from runner.recipe.scalars import read_plain
from runner.recipe.words import unit_hint


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("2e5", 2e5), ("1E+3", 1e3), ("-2e-3", -2e-3), (".5", 0.5), ("3.", 3.0), ("1.5e-08", 1.5e-8),
     ("0", 0), ("-7", -7), ("+7", 7), ("123456789012", 123456789012), ("0.0", 0.0),
     ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
     ("none", "none"), ("on-demand", "on-demand"), ("p5.48xlarge", "p5.48xlarge"), ("90s", "90s"), ("1h30m",
     "1h30m"),
     ("1.2.3", "1.2.3"), ("nobody", "nobody"), ("yesterday", "yesterday"), ("info", "info")],
)  # fmt: skip
def test_reads_what_people_write(text: str, value: object) -> None:
    found = read_plain(text)
    assert found == value
    assert isinstance(found, type(value))


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "ON", "off", "y", "N", "08", "0755", "0o17", "0x1F", "0b101", "1_000", "1:30", "1:30:00",
     "190:20:30.15",
     "2026-11-30", "2026-11-30T10:00:00Z", "nan", "NaN", ".nan", ".inf", "-.Inf", "inf", "1e999", "None", "nil",
     "=", "00",
     "-08", "+0755", "1_0.5", "0.1_0"],
)  # fmt: skip
def test_doubts_what_readers_disagree_about(text: str) -> None:
    assert isinstance(read_plain(text), Doubtful)


@pytest.mark.parametrize(
    ("setting", "raw"),
    [("training.optimizer.lr", "1e-5"), ("training.optimizer.lr", "5e-1"), ("training.optimizer.eps", "1e-8"),
     ("training.optimizer.weight_decay", "0"), ("training.clip_norm", "2e5")],
)  # fmt: skip
def test_exponents_are_numbers(tmp_path: Path, setting: str, raw: str) -> None:
    loaded, problems = check_text(tmp_path, SMALL, f"{setting}={raw}")
    assert not problems
    assert loaded is not None
    value = loaded.recipe
    for part in setting.split("."):
        value = getattr(value, part)
    assert value == float(raw)


WRONG_TYPE = [
    ("name", "no"), ("name", "yes"), ("name", "0755"), ("name", "null"), ("name", "1e5"), ("name", "true"),
    ("model.name", "on"), ("dataset.tokenizer", "None"), ("dataset.tokenizer", "nan"),
    ("recovery.inprocess.soft_timeout", "1:30:00"), ("recovery.inprocess.soft_timeout", "off"),
    ("recovery.inprocess.soft_timeout", "0755"), ("recovery.inprocess.soft_timeout", "1_000"),
    ("cluster.processes_per_node", "08"), ("cluster.processes_per_node", "0755"), ("cluster.processes_per_node",
    "0x8"),
    ("cluster.processes_per_node", "8.0"), ("cluster.processes_per_node", "yes"),
    ("cluster.processes_per_node", '"8"'),
    ("training.schedule", "None"), ("training.schedule", "constant"), ("training.schedule", "[constant]"),
    ("training.optimizer.lr", "nan"), ("training.optimizer.lr", ".inf"), ("training.optimizer.lr", "1e999"),
    ("training.optimizer.lr", "1,5"), ("training.optimizer.lr", "fast"), ("training.optimizer.lr", "None"),
    ("training.clip_norm", "None"), ("training.deterministic", "no"), ("training.deterministic", "1"),
    ("training.deterministic", '"true"'), ("model.compile", "on"), ("training.steps", "1e2"), ("training.steps",
    "true"),
    ("checkpoint.storage_bandwidth", "0o17"), ("checkpoint.storage_bandwidth", "fast"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "raw"), WRONG_TYPE)
def test_wrong_type_quotes_what_is_written(tmp_path: Path, setting: str, raw: str) -> None:
    loaded, problems = check_text(tmp_path, SMALL, f"{setting}={raw}")
    assert loaded is None
    [problem] = [found for found in problems if found.path == setting]
    assert problem.code in ("T203", "T204")
    assert problem.expected
    if not raw.startswith("["):
        assert raw in problem.line()


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("name=none", 'nothing is written by leaving the key out; the text is written "none"'),
        ("training.schedule=None", "nothing is written by leaving the key out"),
    ],
)
def test_what_looks_like_nothing_is_told_how_to_be_written(tmp_path: Path, override: str, hint: str) -> None:
    _, (problem, *_) = check_text(tmp_path, SMALL, override)
    assert problem.hint == hint


def test_off_is_a_choice_where_a_field_lists_it(tmp_path: Path) -> None:
    loaded, _ = check_text(tmp_path, SMALL, "output.progress=off")
    assert loaded is not None
    assert loaded.recipe.output.progress == "off"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("output.progress=yes", "write `on`"),
        ("output.progress=no", "write `off`"),
        (
            "recovery.start_timeout=no",
            "write a duration such as 90s, 20m or a number of seconds of at least 1s",
        ),
        ("checkpoint.every=010", "write a plain decimal number"),
        ("recovery.stop_signals=[SIGKILL]", "no process can act on it: it has no way to save"),
        ("recovery.stop_signals=[SIGTRM]", "did you mean `SIGTERM`?"),
    ],
)
def test_hint_says_what_to_write_instead(tmp_path: Path, override: str, hint: str) -> None:
    _, problems = check_text(tmp_path, SMALL, override)
    assert [found.hint for found in problems] == [hint]


def test_doubtful_text_is_fine_in_quotes(tmp_path: Path) -> None:
    loaded, problems = check_text(tmp_path, SMALL, 'name="no"', "dataset.tokenizer='0755'")
    assert not problems
    assert loaded is not None
    assert (loaded.recipe.name, loaded.recipe.dataset.tokenizer) == ("no", "0755")


def test_doubtful_value_inside_free_mapping_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace("num_hidden_layers: 2", "num_hidden_layers: 02")
    _, problems = check_text(tmp_path, text)
    [problem] = problems
    assert (problem.code, problem.path) == ("T203", "model.architecture.num_hidden_layers")


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        SMALL.replace("steps: 20", "steps: many")
        .replace("every: 5", "evry: 5")
        .replace("source: embedded", "source: web")
    )
    text = text.replace("processes_per_node: 2", "processes_per_node: 3")
    _, problems = check_text(tmp_path, text)
    found = [(problem.code, problem.at.line) for problem in problems]
    assert found == [
        ("T205", line_of(text, "source")),
        ("T203", line_of(text, "steps")),
        ("R201", line_of(text, "global_batch_size")),
        ("T201", line_of(text, "evry")),
    ]


@pytest.mark.parametrize(
    ("override", "hint"),
    [("training.steps=1,000", "write 1000"), ("training.optimizer.lr='1e-4'", "write 1e-4 without quotes"),
     ("training.steps=16.0", "write 16"), ("recovery=inprocess", "write {layer: inprocess}"),
     ("faults.types=hang", "write [hang]"),
     ("model=gpt2", "write {name: gpt2}"), ("training.schedule.kind=Cosine", "did you mean `cosine`?"),
     ("sharding.wrap=transformer_blocks", "did you mean `transformer_block`?"),
     ("name=5", 'write "5" for the text'),
     ("cluster.nvrx_version=0.7", 'write "0.7" for the text'),
     ("cluster.nccl_version=2.27", 'write "2.27" for the text'),
     ("recovery.start_timeout=15sec", "write 15s"), ("recovery.start_timeout=1 Hour 30 min", "write 1h30m"),
     ("recovery.start_timeout=2hours", "write 2h"), ("recovery.start_timeout=1500 msec", "write 1500ms"),
     ("recovery.stop_timeout='5'", "write 5 without quotes, or 5s"),
     ("checkpoint.storage_bandwidth=1GB/s", "write 1GB"), ("checkpoint.storage_bandwidth=64Gi / sec", "write 64GiB"),
     ("checkpoint.storage_bandwidth=64Gi", "write 64GiB"),
     ("checkpoint.storage_bandwidth=500mb", "write 500MB, or 500MiB for powers of two"),
     ("training.precision=fp16", "fp16 needs loss scaling, which is not there: use bf16, whose range is that of fp32"),
     ("model.param_dtype=float16",
      "fp16 needs loss scaling, which is not there: use bfloat16, whose range is that of fp32"),
     ("training.precision=bfloat16", "did you mean `bf16`?"),
     ("recovery.inprocess.soft_timeout=1:30", "numbers have no base 60: write units, e.g. 1m30s")],
)  # fmt: skip
def test_hint_says_what_to_write(tmp_path: Path, override: str, hint: str) -> None:
    _, problems = check_text(tmp_path, SMALL, override)
    assert hint in [problem.hint for problem in problems]


@pytest.mark.parametrize(
    ("override", "expected"),
    [("recovery.start_timeout=100000d", "a duration below 10^9 seconds"),
     ("recovery.start_timeout=1000000000", "a duration below 10^9 seconds"),
     ("checkpoint.storage_bandwidth=99999999TiB", "a size below 2^63 bytes")],
)  # fmt: skip
def test_what_is_too_large_is_not_told_to_be_written_as_it_is(
    tmp_path: Path, override: str, expected: str
) -> None:
    _, [problem] = check_text(tmp_path, SMALL, override)
    assert (problem.code, problem.expected, problem.hint) == ("T204", expected, None)


KUBERNETES = "cluster.kubernetes={image: 'r.example/i:1', storage: {source: claim, claim_name: a}, %s}"


def test_number_where_a_text_is_due_is_not_called_wrong_and_right_at_once(tmp_path: Path) -> None:
    for override, written in (
        ("cluster.nvrx_version=0.7", "0.7"), (KUBERNETES % "resources: {cpu: 500}", "500"), ("name=5", "5")
    ):  # fmt: skip
        _, (problem, *_) = check_text(tmp_path, SMALL, override)
        assert problem.message == f"`{written}` is a number here, not text"
        assert f" {written} " not in f" {problem.expected} ".replace(",", " ")
    for unsupported in ("0.9", "1_0", "true"):  # quotes would not help
        _, (problem,) = check_text(tmp_path, SMALL, f"cluster.nvrx_version={unsupported}")
        assert (problem.code, problem.hint) == ("T203", None)


@pytest.mark.parametrize("raw", ["15parsecs", "min", "1m2", "3x4"])
def test_no_unit_is_guessed(raw: str) -> None:
    assert unit_hint(raw, "duration") is None
    assert unit_hint(raw, "size") is None


@pytest.mark.parametrize(
    ("override", "least"),
    [("recovery.process_group_timeout=15ms", "1s"), ("recovery.stop_timeout=1ms", "1s"),
     ("recovery.start_timeout=0", "1s"), ("recovery.rendezvous_timeout=900ms", "1s"),
     (KUBERNETES % "active_deadline: 1s", "1m"), (KUBERNETES % "leader_timeout: 1s", "10s")],
)  # fmt: skip
def test_timeouts_that_nothing_could_keep_are_refused(tmp_path: Path, override: str, least: str) -> None:
    loaded, problems = check_text(tmp_path, SMALL, override)
    assert loaded is None
    [problem] = [found for found in problems if found.code == "T204"]
    assert (problem.expected or "").endswith((f"of at least {least}", f"of at least {least}, or null"))


def test_ladder_of_a_cpu_run_does_not_speak_of_nccl(tmp_path: Path) -> None:
    for accelerator, word in (("cpu", "gloo"), ("cuda", "NCCL")):
        loaded, problems = check_text(tmp_path, SMALL, f"cluster.accelerator={accelerator}")
        assert loaded is not None, problems
        (line,) = (line for line in explain(loaded).splitlines() if "process_group_timeout: a" in line)
        assert word in line


def test_ladder_has_the_limit_of_data_workers_where_there_are_any(tmp_path: Path) -> None:
    for workers, shown in ((0, False), (2, True)):
        loaded, problems = check_text(tmp_path, SMALL, f"dataset.workers={workers}")
        assert loaded is not None, problems
        assert ("dataset.worker_timeout: a data worker" in explain(loaded)) is shown


def test_key_that_is_nearly_one_of_the_types_is_warned_of(tmp_path: Path) -> None:
    for key, meant in (("hiden_size", "hidden_size"), ("num_hidden_layer", "num_hidden_layers")):
        loaded, problems = check_text(tmp_path, SMALL, f"model.architecture.{key}=64")
        assert loaded is not None
        assert [(found.code, found.hint) for found in problems] == [("R315", f"did you mean `{meant}`?")]
    _, problems = check_text(tmp_path, SMALL, "model.architecture={model_type: gpt2, n_layers: 2, n_ctx: 64}")
    assert [(found.code, found.path) for found in problems if found.code == "R315"] == [
        ("R315", "model.architecture.n_layers")
    ]
    others = "model.architecture={model_type: llama, rope_theta: 5e5, rms_norm_eps: 1e-5, hidden_act: silu}"
    assert "R315" not in [found.code for found in check_text(tmp_path, SMALL, others)[1]]


def test_missing_setting_points_at_its_section(tmp_path: Path) -> None:
    text = SMALL.replace("  source: embedded\n", "").replace("  every: 5", "  keep_last: 5")
    _, problems = check_text(tmp_path, text + "faults:\n  at:\n    - step: 3\n      rank: 1\n")
    found = {problem.path: problem.at.line for problem in problems if problem.code == "T202"}
    assert found == {
        "dataset.source": line_of(text, "dataset:"),
        "checkpoint.every": line_of(text, "checkpoint:"),
        "faults.at[0].type": text.count("\n") + 3,
    }


def test_misspelt_key_of_the_variant_is_one_error(tmp_path: Path) -> None:
    text = SMALL.replace("  strategy: fsdp", "  stategy: fsdp")
    _, problems = check_text(tmp_path, text)
    [problem] = problems
    assert (problem.code, problem.at.line, problem.hint) == (
        "T201",
        line_of(text, "stategy"),
        "did you mean `strategy`?",
    )


def test_empty_alternative_names_what_fits(tmp_path: Path) -> None:
    _, problems = check_text(tmp_path, SMALL, "sharding.wrap={}")
    [problem] = problems
    assert (problem.code, problem.path) == ("T203", "sharding.wrap")
    assert "min_params" in (problem.expected or "")
