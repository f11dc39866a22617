"""What is wrong in a suite's file, each mistake with its place, the value and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from runner.recipe.words import close_matches, short

_KEY = "[key]"  # pydantic's last part of the place of a key that is wrong itself

_MAPPING = "wants a mapping (key: value)"
_WANTED = {
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "list_type": "wants a list",
    "int_type": "wants an integer",
    "int_parsing": "wants an integer",
    "bool_parsing": "wants true or false",
    "string_type": "wants a text",
    "string_pattern_mismatch": "wants lower-case letters, digits, `.`, `+` and `-`, as its folder is called so",
}


def mistakes_of(
    error: ValidationError, path: Path, root: yaml.Node | None, models: Mapping[int, type[BaseModel]]
) -> list[str]:
    """A line for each mistake, in the order of the file.

    Args:
        path: the file.
        root: what is in it.
        models: how deep in the file -> what stands there; for the keys that it knows.
    """
    found = [_mistake(fault, path, root, models) for fault in error.errors(include_url=False)]
    return [text for _, text in sorted(found)]


def _mistake(
    fault: Any, path: Path, root: yaml.Node | None, models: Mapping[int, type[BaseModel]]
) -> tuple[tuple[int, int], str]:
    parts = [part for part in fault["loc"] if part != _KEY]
    lost, node = _find(root, parts)
    name = ".".join(map(str, parts)) or "suite"
    known = models[len(parts) - 1].model_fields if len(parts) - 1 in models else {}
    if fault["type"] == "missing":
        text = f"{name}: is missing"
        if isinstance(lost, yaml.MappingNode):
            text += _meant(
                str(parts[-1]), (key.value for key, _ in lost.value if key.value not in known), "is it"
            )
    elif fault["type"] == "extra_forbidden":
        text = f"{name}: no such key" + _meant(str(parts[-1]), known, "did you mean")
        text += f"; known here: {', '.join(known)}" if known else ""
    else:
        text = f"{name}: {_WANTED.get(fault['type']) or _first_down(fault['msg'])}"
        if not isinstance(fault["input"], dict | list):
            text += f", not {short(repr(fault['input']))}"
    mark = node.start_mark if node is not None else None
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return (line, column), f"{path}:{line}:{column}: {text}"


def _find(root: yaml.Node | None, parts: list[Any]) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The node that holds the last part that is there, and the key or item at the end, or the last one on the way."""
    holder, place, node = root, root, root
    for part in parts:
        holder = node
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if str(part) not in pairs:
                break
            place, node = pairs[str(part)]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            place = node = node.value[part]
        else:
            break
    return holder, place


def _meant(word: str, choices: Iterable[str], ask: str) -> str:
    near = close_matches(word, choices)
    return f"; {ask} `{near[0]}`?" if near else ""


def _first_down(text: str) -> str:
    return text[:1].lower() + text[1:]
