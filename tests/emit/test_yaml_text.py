"""What is written is read back the same, by PyYAML and by readers of other rules."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runner.emit.yaml_text import documents

_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
_lines = st.lists(st.text("ab :#-'\"\t", max_size=8), min_size=1, max_size=5).map("\n".join)
_scalar = st.one_of(
    _text, _lines, _lines.map(lambda text: text + "\n"), st.integers(), st.booleans(), st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
_value = st.recursive(
    _scalar,
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(_text, below, max_size=4)),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(_text, _value, min_size=1, max_size=4), min_size=1, max_size=3))
def test_everything_is_read_back_the_same(objects: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(documents(objects))) == objects


DOUBTFUL = (
    "no", "On", "y", "1e3", "0o17", "0x1f", "1:30", "~", "", "null", ".5", "1_000", "=", "<<", "-", "? a", "- a",
    "a: b", "a #b", "2026-01-01",
)  # fmt: skip


@pytest.mark.parametrize("text", DOUBTFUL)
def test_texts_that_some_reader_takes_for_something_else_are_quoted(text: str) -> None:
    assert documents([{"key": text}]) == f'---\nkey: "{text}"\n'


def test_layout_is_that_of_kubernetes_manifests() -> None:
    item = {
        "kind": "Job",
        "spec": {"list": [{"a": 1, "b": [1.5, None]}, [], "x"], "empty": {}, "text": "one\n  two\n\nthree\n"},
    }
    assert documents([item]) == (
        "---\nkind: Job\nspec:\n  list:\n    - a: 1\n      b:\n        - 1.5\n        - null\n    - []\n    - x\n"
        "  empty: {}\n  text: |\n    one\n      two\n\n    three\n"
    )
