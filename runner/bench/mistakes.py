"""What is wrong in a suite's file, each mistake with its place, the value and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from runner.recipe.node import Doubtful, Node, Position, dotted
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
    "int_from_float": "wants an integer",
    "bool_type": "wants true or false",
    "bool_parsing": "wants true or false",
    "string_type": "wants a text",
    "string_pattern_mismatch": "wants lower-case letters, digits and inner dashes, at most 52, as a run is called so",
    "too_short": "wants at least one",
}


def mistakes_of(
    error: ValidationError, path: Path, root: Node, models: Mapping[int, type[BaseModel]]
) -> list[str]:
    """A line for each mistake, in the order of the file.

    Args:
        error: what pydantic says.
        path: the file.
        root: what is in it.
        models: how deep in the file -> what stands there; for the keys that it knows.
    """
    faults = error.errors(include_url=False)
    told = [fault for fault in faults if not isinstance(fault["input"], Doubtful)]  # those have been
    found = [_mistake(fault, path, root, models) for fault in told]
    return [text for _, text in sorted(found)]


def _mistake(
    fault: Any, path: Path, root: Node, models: Mapping[int, type[BaseModel]]
) -> tuple[tuple[int, int], str]:
    parts = [part for part in fault["loc"] if part != _KEY]
    lost, at = _find(root, parts)
    name = dotted(tuple(parts)) or "suite"
    known = models[len(parts) - 1].model_fields if len(parts) - 1 in models else {}
    if fault["type"] == "missing":
        text = f"{name}: is missing"
        if isinstance(lost.value, dict):
            text += _meant(str(parts[-1]), (key for key in lost.value if key not in known), "is it")
    elif fault["type"] == "extra_forbidden":
        text = f"{name}: no such key" + _meant(str(parts[-1]), known, "did you mean")
        text += f"; known here: {', '.join(known)}" if known else ""
    else:
        text = f"{name}: {_WANTED.get(fault['type']) or _plain(fault['msg'])}"
        if not isinstance(fault["input"], dict | list):
            given = fault["input"]
            text += f", not {short(repr(str(given) if isinstance(given, str) else given))}"
    return (at.line, at.column), f"{path}:{at.line}:{at.column}: {text}"


def _find(root: Node, parts: list[Any]) -> tuple[Node, Position]:
    """What holds the last part that is there, and where that part stands, its key or it as an item."""
    holder, at, node = root, root.at, root
    for part in parts:
        holder = node
        entry = node.value.get(str(part)) if isinstance(node.value, dict) else None
        below = entry.node if entry is not None else node.child(part)
        if below is None:
            break
        at, node = entry.key_at if entry is not None else below.at, below
    return holder, at


def _meant(word: str, choices: Iterable[str], ask: str) -> str:
    near = close_matches(word, choices)
    return f"; {ask} `{near[0]}`?" if near else ""


def _plain(text: str) -> str:
    text = text.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
