"""The loader takes any bytes: no traceback, no hang, no blow-up of memory, and every finding can be printed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipelab import SMALL, check_text
from trees import CLUSTER, LAPTOP, render

from runner.recipe import render as output
from runner.recipe.load import check_file

MANY = settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TOKENS = [
    "a", "name", "training", ": ", ":", "- ", "\n", "\n  ", "\n    ", "\t", "{", "}", "[", "]", ",", ", ", "&a ",
    "*a", "<<: ", "<<",
    "!replace ", "!!str ", "!", "? ", "|", ">", "|2-\n", "'", '"', "\\", "#", " #", "---\n", "...\n",
    "%YAML 1.2\n", "${A}", "${", "$$",
    "1e5", "08", "null", "~", "\u00e9", "\ufeff", "\u2028", "\u0085", "\U0001f600", "\r", "\r\n", "@", "`", "%",
    "=", "true", "5",
    "extends: recipe.yaml\n", "model:\n", "steps: 5\n",
]  # fmt: skip


def survives(folder: Path, data: bytes) -> None:
    start = time.monotonic()
    loaded, problems = check_text(folder, data)
    assert time.monotonic() - start < 10
    assert loaded is not None or any(problem.severity == "error" for problem in problems)
    for problem in problems:
        assert "\n" not in problem.line().replace(problem.at.file, "")
        assert problem.at.line >= 0
    assert json.loads(output.as_json(problems)) is not None
    assert len(output.github(problems).splitlines()) == len(problems)
    json.loads(output.sarif(problems, version="0"))
    output.text(problems, color=True).encode("utf-8", "surrogateescape")


@MANY
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    survives(tmp_path_factory.getbasetemp(), data)


@MANY
@given(parts=st.lists(st.sampled_from(TOKENS), max_size=40))
def test_arbitrary_yaml_tokens(parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    survives(tmp_path_factory.getbasetemp(), "".join(parts).encode())


@MANY
@given(data=st.data())
def test_bytes_changed_in_a_valid_recipe(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = data.draw(st.sampled_from([SMALL, render(LAPTOP)[0], render(CLUSTER)[0]])).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 6)))
        new = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from(TOKENS).map(str.encode)))
        text = text[:start] + new + text[end:]
    survives(tmp_path_factory.getbasetemp(), text)


def _laughs(levels: int, each: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * each)}]")
    return "\n".join(lines)


def _merges(levels: int) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(50)) + "}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 40)}]\n  m{level}: 1")
    return "\n".join(lines)


_FREE_LAUGHS = "a: &a [1,1,1,1,1,1,1,1]" + "".join(
    f", {name}: &{name} [{','.join([f'*{below}'] * 7)}]"
    for below, name in zip("abcdef", "bcdefg", strict=True)
)
_MANY_KEYS = ", ".join(f"k{i}: 1" for i in range(9000))
BOMBS = {
    "billion laughs": _laughs(12, 10),
    "billion laughs in a free mapping": SMALL.replace("{model_type", "{" + _FREE_LAUGHS + ", model_type"),
    "merge bomb": _merges(30),
    "quadratic merges": "a: &a {" + _MANY_KEYS + "}\nb: {<<: [" + "*a, " * 9000 + "*a]}",
    "flow depth": "a: " + "[" * 100_000,
    "flow mappings": "{a: " * 50_000,
    "block depth": "\n".join("  " * depth + "a:" for depth in range(1200)),
    "sequence depth": "- " * 100_000,
    "key depth": "? " * 100_000,
    "long key": "a" * 900_000 + ": 1",
    "long scalar": "name: " + "9" * 900_000,
    "long float": "training: {optimizer: {lr: 1e" + "9" * 200_000 + "}}",
    "many keys": "\n".join(f"k{i}: 1" for i in range(60_000)),
    "many problems": "training:\n" + "\n".join(f"  k{i}: 1" for i in range(15_000)),
    "many wrong items": "faults:\n  types: [" + "x, " * 15_000 + "x]",
    "many duplicates": "training:\n" + "  steps: 1\n" * 15_000,
    "many anchors": "\n".join(f"k{i}: &a{i} 1" for i in range(15_000)),
    "long durations": SMALL.replace("every: 5", "every: 5\n  write_timeout: " + "1h" * 100_000),
    "long pattern": SMALL.replace("name: small", "name: " + "a-" * 200_000 + "!"),
    "many variables": "name: '" + "${A:-x}" * 100_000 + "'",
    "unclosed variables": "name: '" + "${" * 400_000 + "'",
    "too large": "# " + "x" * 2_000_000,
    "self alias": "a: &a [*a]",
    "mutual alias": "a: &a {b: &b [*a, *b]}",
    "nul bytes": "\0" * 1000,
    "spaces": " " * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "quotes": "a: " + "'" * 999_999,
    "comment lines": "#\n" * 500_000,
    "huge architecture": SMALL.replace("hidden_size: 64", "hidden_size: " + "9" * 300),
    "huge steps": SMALL.replace("steps: 20", "steps: 9223372036854775807"),
    "huge numbers of ranks": SMALL.replace("strategy: fsdp", "strategy: hsdp\n  replicas: 4611686018427387847")
    .replace("processes_per_node: 2", "processes_per_node: 4611686018427387846")
    .replace("layer: inprocess", "layer: inprocess\n  inprocess: {min_world_size: 2}")
    .replace("global_batch_size: 8", "global_batch_size: 2305843009213693951"),
    "huge everything": SMALL.replace("steps: 20", "steps: 9223372036854775807")
    .replace("global_batch_size: 8", "global_batch_size: 9223372036854775807")
    .replace("sequence_length: 64", "sequence_length: 99999999999999999999"),
}  # fmt: skip

_LIMIT_BYTES = 600 << 20
_CHILD = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from runner.recipe.load import check_file
from runner.recipe import render
for path in sys.argv[1:]:
    start = time.monotonic()
    loaded, problems = check_file(path, environment={{}})
    shown = render.text(problems)
    print(path.rpartition('/')[2], loaded is None, len(problems), f"{{time.monotonic() - start:.1f}}", len(shown))
"""


def test_bombs_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    """All bombs, one after the other, in 600 MiB of address space; none is accepted but the merely huge numbers."""
    for number, text in enumerate(BOMBS.values()):
        (tmp_path / f"{number:02}.yaml").write_text(text)
    paths = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(limit=_LIMIT_BYTES), *paths],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == len(BOMBS)
    for name, (_, refused, found, seconds, _shown) in zip(BOMBS, lines, strict=True):
        assert float(seconds) < 20, name
        assert refused == "True" or name == "huge steps", name
        assert int(found) >= 1 or name == "huge steps", name


def test_address_space_limit_would_catch_a_bomb() -> None:
    """The limit under which the bombs are run does bite."""
    limit = f"resource.setrlimit(resource.RLIMIT_AS, ({_LIMIT_BYTES}, {_LIMIT_BYTES}))"
    code = f"import resource\n{limit}\nbytearray({2 * _LIMIT_BYTES})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "MemoryError" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs device files")
@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_device_files_end(path: str) -> None:
    loaded, problems = check_file(path)
    assert loaded is None
    assert len(problems) == 1
