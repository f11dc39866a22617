"""Kubernetes objects as YAML that every YAML reader understands alike.

A text that some reader takes for a number, a truth value or nothing (`no`, `1e3`, `0o17`, `1:30`) is quoted; texts of
several lines are literal blocks. A writer of its own, because PyYAML's takes longer than everything else together and
quotes by the rules of one reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][-A-Za-z0-9_./@+]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"])
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_BLOCK = re.compile("[^\\s][^\\x00-\\x08\\x0b-\\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]*\n")


def documents(objects: Sequence[dict[str, Any]]) -> str:
    """The objects as one YAML stream, keys in the order given."""
    return "".join(line + "\n" for item in objects for line in ("---", *_mapping(item, "")))


def _mapping(mapping: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        head = f"{indent}{_scalar(str(key))}:"
        if isinstance(value, dict) and value:
            yield head
            yield from _mapping(value, indent + "  ")
        elif isinstance(value, list) and value:
            yield head
            yield from _sequence(value, indent + "  ")
        elif (
            isinstance(value, str)
            and "\n" in value
            and _BLOCK.fullmatch(value)
            and not value.endswith("\n\n")
        ):
            yield f"{head} |"
            yield from (f"{indent}  {line}" if line else "" for line in value[:-1].split("\n"))
        else:
            yield f"{head} {_scalar(value)}"


def _sequence(items: list[Any], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, dict | list) and item:
            inner = indent + "  "
            lines = _mapping(item, inner) if isinstance(item, dict) else _sequence(item, inner)
            yield f"{indent}- {next(lines)[len(indent) + 2 :]}"
            yield from lines
        else:
            yield f"{indent}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return "{}" if value == {} else "[]" if value == [] else str(value)
