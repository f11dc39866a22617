"""Words for messages: what a type accepts, what was written instead, what may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from runner.recipe.node import Node
from runner.recipe.scalars import read_plain
from runner.recipe.table import Table, Type
from runner.recipe.text import printable
from runner.recipe.units import format_duration, parse_size

LARGEST_INT = 2**63 - 1
_LONGEST_SHOWN = 80
_PATTERN_WORDS = {
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "of lower-case letters, digits and inner dashes",
    "^[A-Za-z_][A-Za-z0-9_]*$": "of letters, digits and underscores, not starting with a digit",
    r"^/[^:\n\t]*[^:/\n\t]$": "that is an absolute path",
    r"^\S+$": "without spaces",
    r"^[a-z0-9-]+(\.[a-z0-9-]+)+$": "such as p5.48xlarge",
    r"^0\.[4-7](\.[0-9]+)?$": 'such as 0.4.1, 0.6.0 or "0.7" (releases 0.4 to 0.7)',
    r"^[-._a-zA-Z0-9]+$": "of letters, digits, dashes, dots and underscores",
    r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$": 'that is a Kubernetes quantity such as "16", 500m or 64Gi',
    r"^[0-9]+(\.[0-9]+){1,3}$": "such as 2.27.5",
    "^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$": "of letters, digits and inner dashes and dots",
    "^[A-Za-z0-9_-]{1,16}$": "of at most 16 letters, digits, dashes and underscores",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "of lower-case letters, digits and inner dashes and dots"
    ),
    "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$": (
        "that is a label's value: at most 63 letters, digits and inner dashes, dots and underscores"
    ),
    (
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$"
    ): ("that is a label's key, such as team or example.com/team"),
    "^fs-[0-9a-f]{8,17}$": "that is a file system's id, such as fs-0123456789abcdef0",
}


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
        return noun + _range(*(map(_duration, kind[1:]) if name == "duration" else kind[1:]))
    if name == "str":
        _, shortest, longest, pattern = kind
        text = "text"
        if longest is not None:
            text += f" of at most {longest} characters"
        elif shortest:
            text += f" of at least {shortest} characters" if shortest > 1 else " that is not empty"
        return text + (f" {_PATTERN_WORDS.get(pattern, f'that matches {pattern}')}" if pattern else "")
    if name == "bool":
        return "true or false"
    if name == "literal":
        return choices_text(kind[1])
    if name == "list":
        least = f" with at least {kind[2]} item{'s' if kind[2] > 1 else ''}" if kind[2] else ""
        return f"a list{least} of: {describe(kind[1], table)}, written [...]"
    if name == "tuple":
        return f"a list of {len(kind[1])}: {'; '.join(describe(inner, table) for inner in kind[1])}"
    if name == "dict":
        return f"a mapping whose values are: {describe(kind[2], table)}"
    if name == "section":
        return f"a mapping with {listed(table[kind[1]], 6)}"
    if name == "tagged":
        return f"a mapping with `{kind[1]}: {' | '.join(kind[2])}`"
    if name == "oneof":
        return " or ".join(describe(inner, table) for inner in kind[1])
    return "a value"


def close_matches(word: str, choices: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The choice nearest to a word, if one is near."""
    import difflib  # for error messages only

    return difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)


def _duration(bound: float | None) -> str | float | None:
    """A bound of a duration, as durations are written."""
    return format_duration(timedelta(seconds=bound)) if bound else bound


def _range(ge: Any, gt: Any, le: Any, lt: Any) -> str:
    parts = []
    if ge is not None:
        parts.append(f"of at least {ge:g}" if isinstance(ge, float) else f"of at least {ge}")
    if gt is not None:
        parts.append(f"above {gt:g}" if isinstance(gt, float) else f"above {gt}")
    if le is not None and le != LARGEST_INT:  # a limit that nobody needs to be told of
        parts.append(f"at most {le:g}" if isinstance(le, float) else f"at most {le}")
    if lt is not None:
        parts.append(f"below {lt:g}" if isinstance(lt, float) else f"below {lt}")
    return " " + " and ".join(parts) if parts else ""


def choices_text(choices: Iterable[Any]) -> str:
    """`a, b or c`."""
    words = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def listed(fields: Iterable[str], most: int) -> str:
    """`a, b, c, ...`, at most so many."""
    names = list(fields)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


_SAME = {
    "gpu": "cuda", "nccl": "cuda", "gloo": "cpu", "float32": "fp32", "fp32": "float32", "bfloat16": "bf16",
    "bf16": "bfloat16",
}  # fmt: skip
"""What other programs call it, where the letters would suggest something else or nothing."""


def nearest_choice(value: Any, choices: Iterable[Any]) -> str | None:
    """The choice that was probably meant."""
    if not isinstance(value, str):
        return None
    words = [choice for choice in choices if isinstance(choice, str)]
    if _SAME.get(value.lower()) in words:
        return _SAME[value.lower()]
    folded = {word.lower(): word for word in reversed(words)}
    match = close_matches(value.lower(), folded)
    return folded[match[0]] if match else None


_FP16 = frozenset({"fp16", "float16", "half", "16"})


def choice_hint(value: Any, choices: Iterable[Any]) -> str | None:
    """What to write instead of something that is none of the choices."""
    words = list(choices)
    if str(value).lower() in _FP16 and (wide := {"bf16", "bfloat16"} & set(words)):
        return f"fp16 needs loss scaling, which is not there: use {wide.pop()}, whose range is that of fp32"
    if str(value).upper() in ("SIGKILL", "SIGSTOP") and "SIGTERM" in words:
        return "no process can act on it: it has no way to save"
    near = nearest_choice(value, words)
    return f"did you mean `{near}`?" if near else None


_SWITCH = "on or off"  # how the choices of a setting end that can be switched

_UNIT_WORDS = {
    "ms": r"ms|msecs?|millis|milliseconds?", "s": r"s|secs?|seconds?", "m": r"m|mins?|minutes?",
    "h": r"h|hrs?|hours?", "d": r"d|days?",
}  # fmt: skip
_SIZE_UNIT = r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)(b?)"


def unit_hint(value: Any, kind: str) -> str | None:
    """How to write the duration or size that a text says in units of its own: `15min`, `64G`."""
    if not isinstance(value, str) or len(value) > _LONGEST_SHOWN or not value.isascii():
        return None
    text = value.strip().lower()
    if kind == "size":
        if rate := re.fullmatch(r"(.*\S)\s*/\s*s(ec(ond)?)?", value.strip(), re.IGNORECASE):
            return _bare_size(rate[1])
        if not (size := re.fullmatch(_SIZE_UNIT, text)):
            return None
        number, prefix, binary, _ = size.groups()
        two, ten = f"{number}{prefix.upper()}iB", f"{number}{prefix.upper()}B"
        return f"write {two}" if binary else f"write {ten}, or {two} for powers of two"
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return f"write {text} without quotes, or {text}s"
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    if not parts or re.sub(r"\d+(?:\.\d+)?\s*[a-z]+", "", text).strip(" ,"):
        return None
    units = [
        next((u for u, names in _UNIT_WORDS.items() if re.fullmatch(names, word)), None) for _, word in parts
    ]
    if None in units:
        return None
    return "write " + "".join(f"{number}{unit}" for (number, _), unit in zip(parts, units, strict=True))


def _bare_size(text: str) -> str | None:
    """Of a bandwidth that was written with `/s`: it is a size, the second is understood."""
    try:
        parse_size(text)
    except ValueError:
        return unit_hint(text, "size")
    return f"write {text}"


def misfit(node: Node) -> str:
    """The clause that says what was found."""
    if isinstance(node.value, dict):
        return "a mapping does not fit here"
    if isinstance(node.value, list):
        return "a list does not fit here" if node.value else "an empty list does not fit here"
    if node.value is None:
        return "an empty value does not fit here"
    return f"{shown(node)} does not fit here"


def shown(node: Node) -> str | None:
    """A scalar as written, in backquotes."""
    if isinstance(node.value, dict | list):
        return None
    if node.value is None and not node.raw:
        return None
    return f"`{short(node.raw)}`"


def short(text: str) -> str:
    """Text cut to what fits a message."""
    text = printable(text)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def number_hint(value: Any) -> str | None:
    """How to write the number that a text looks like."""
    if not isinstance(value, str) or len(value) > _LONGEST_SHOWN:
        return None
    bare = value.strip().replace(",", "").replace("_", "")
    number = read_plain(bare) if bare else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return f"write {bare}" if bare != value else f"write {bare} without quotes"


def doubt_hint(text: str, expected: str) -> str:
    """What to write instead of a scalar that YAML readers disagree about."""
    if expected == "true or false":
        return "only true and false are booleans"
    if text.lower() in ("none", "nil", "undefined"):
        if expected.endswith("or null"):
            return "null is written `null`"
        text_too = f'; the text is written "{text}"' if expected.startswith("text") else ""
        return f"nothing is written by leaving the key out{text_too}"
    if expected.startswith("text"):
        return f'some YAML readers take this for a boolean, number or date: write "{text}" for the text'
    if ":" in text:
        return "numbers have no base 60: write units, e.g. 1m30s"
    if re.search(r"nan|inf", text, re.IGNORECASE):
        return "it must be finite"
    if expected.endswith(_SWITCH):
        return "write `on`" if text.lower() in ("yes", "y", "true") else "write `off`"
    return "write a plain decimal number" if re.search(r"\d", text) else f"write {expected}"
