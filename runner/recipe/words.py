"""Words for messages: what a type accepts, what was written instead, what may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from runner.recipe.node import Node
from runner.recipe.table import Table, Type

_LONGEST_SHOWN = 80


def describe(kind: Type, table: Table) -> str:
    """What a type accepts, for people."""
    name = kind[0]
    if name == "optional":
        return f"{describe(kind[1], table)}, or null"
    if name in ("int", "float", "duration", "size"):
        noun = {
            "int": "an integer",
            "float": "a number",
            "duration": "a duration such as 90s, 20m or a number of seconds",
            "size": "a size such as 64GiB, 500MB or a number of bytes",
        }[name]
        return noun + _range(*kind[1:])
    if name == "str":
        _, shortest, longest, pattern = kind
        text = "text"
        if longest is not None:
            text += f" of at most {longest} characters"
        elif shortest:
            text += f" of at least {shortest} characters" if shortest > 1 else " that is not empty"
        return text + (f" that matches {pattern}" if pattern else "")
    if name == "bool":
        return "true or false"
    if name == "literal":
        return choices_text(kind[1])
    if name == "list":
        least = f" with at least {kind[2]} item{'s' if kind[2] > 1 else ''}" if kind[2] else ""
        return f"a list [...]{least} of: {describe(kind[1], table)}"
    if name == "tuple":
        return f"a list of {len(kind[1])}: {'; '.join(describe(inner, table) for inner in kind[1])}"
    if name == "dict":
        return f"a mapping whose values are: {describe(kind[2], table)}"
    if name == "section":
        return "{" + listed(table[kind[1]], 6) + "}"
    if name == "tagged":
        return f"a mapping with `{kind[1]}: {' | '.join(kind[2])}`"
    if name == "oneof":
        return " or ".join(describe(inner, table) for inner in kind[1])
    return "a value"


def close_matches(word: str, choices: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The choice nearest to a word, if one is near."""
    import difflib  # for error messages only

    return difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)


def _range(ge: Any, gt: Any, le: Any, lt: Any) -> str:
    huge = 2**63 - 1
    parts = []
    if ge is not None:
        parts.append(f"at least {ge:g}" if isinstance(ge, float) else f"at least {ge}")
    if gt is not None:
        parts.append(f"above {gt:g}" if isinstance(gt, float) else f"above {gt}")
    if le is not None and le != huge:
        parts.append(f"at most {le:g}" if isinstance(le, float) else f"at most {le}")
    if le == huge:
        parts.append("below 2^63")
    if lt is not None:
        parts.append(f"below {lt:g}" if isinstance(lt, float) else f"below {lt}")
    return " " + " and ".join(parts) if parts else ""


def choices_text(choices: Iterable[Any]) -> str:
    words = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def listed(fields: Iterable[str], most: int) -> str:
    names = list(fields)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def nearest_choice(value: Any, choices: Iterable[Any]) -> str | None:
    if not isinstance(value, str):
        return None
    words = [choice for choice in choices if isinstance(choice, str)]
    folded = {word.lower(): word for word in reversed(words)}
    match = close_matches(value.lower(), folded)
    return folded[match[0]] if match else None


def misfit(node: Node) -> str:
    if isinstance(node.value, dict):
        return "a mapping does not fit here"
    if isinstance(node.value, list):
        return "a list does not fit here"
    if node.value is None:
        return "an empty value does not fit here"
    return f"{shown(node)} does not fit here"


def shown(node: Node) -> str | None:
    if isinstance(node.value, dict | list):
        return None
    if node.value is None and not node.raw:
        return None
    return f"`{short(node.raw)}`"


def short(text: str) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def doubt_hint(text: str, expected: str) -> str:
    if expected == "true or false":
        return "only true and false are booleans"
    if text.lower() in ("none", "nil", "undefined"):
        return "null is written `null`"
    if expected.startswith("text"):
        return f'some YAML readers take this for a boolean, number or date: write "{text}" for the text'
    if ":" in text:
        return "no sexagesimal numbers: write 90m or 5400"
    if re.search(r"nan|inf", text, re.IGNORECASE):
        return "it must be finite"
    return "write a plain decimal number"
