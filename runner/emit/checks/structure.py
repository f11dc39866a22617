"""Fields and their types, from Kubernetes' own definitions: a patch may have put anything anywhere.

The table is that of the newest Kubernetes known; a field that an older server does not have yet passes here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from runner.emit.checks.walk import POD
from runner.emit.findings import Finding
from runner.recipe.quantity import LARGEST_INT32, LARGEST_INT64
from runner.recipe.text import control_character

_TABLE = Path(__file__).parents[1] / "kubernetes_fields.json"
_SIMPLE: dict[str, tuple[tuple[type, ...], str]] = {
    "s": ((str,), "a text: quote it"),
    "i": ((int,), "an integer"),
    "l": ((int,), "an integer"),
    "n": ((int, float), "a number"),
    "b": ((bool,), "true or false"),
    "q": ((int, float, str), "a quantity"),
}
_LARGEST: dict[str, int] = {"i": LARGEST_INT32, "l": LARGEST_INT64}


@cache
def _types() -> dict[str, dict[str, str]]:
    return json.loads(_TABLE.read_text(encoding="utf-8"))["types"]


def check(item: dict[str, Any]) -> list[Finding]:
    """Unknown fields, and values that are not of their field's type, at any depth."""
    kind = str(item.get("kind"))
    if kind not in _types():
        return [Finding(kind, "not a kind that is emitted here")]
    findings: list[Finding] = []
    _value(item, kind, kind, findings)
    if findings:
        return findings
    if not isinstance(item.get("metadata"), dict):
        findings.append(Finding(f"{kind}.metadata", "missing"))
    if kind == "Job":
        spec = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
        if not spec.get("containers"):
            findings.append(Finding(f"{POD}.containers", "no container is left"))
    elif kind in ("Service", "PersistentVolume", "PersistentVolumeClaim") and not item.get("spec"):
        findings.append(Finding(f"{kind}.spec", "missing"))
    return findings


def _value(value: Any, kind: str, path: str, findings: list[Finding]) -> None:
    """Compare a value with its type as the table writes it."""
    if value is None or kind == "?":
        return
    if kind[0] == "[":
        if not isinstance(value, list):
            findings.append(Finding(path, f"{_shown(value)} is not a list"))
            return
        for index, item in enumerate(value):
            if item is None:
                findings.append(Finding(f"{path}[{index}]", "an empty item"))
            _value(item, kind[1:], f"{path}[{index}]", findings)
        return
    if kind in _SIMPLE:
        types, expected = _SIMPLE[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "b"):
            findings.append(Finding(path, f"{_shown(value)} is not {expected}"))
        elif (
            isinstance(value, int) and kind in _LARGEST and not -_LARGEST[kind] - 1 <= value <= _LARGEST[kind]
        ):
            findings.append(Finding(path, f"{value} does not fit the field: at most {_LARGEST[kind]}"))
        elif isinstance(value, str) and (odd := control_character(value)) is not None:
            message = f"{_shown(value)} holds the control character U+{ord(odd):04X}: delete it"
            findings.append(Finding(path, message))
        return
    if not isinstance(value, dict):
        findings.append(Finding(path, f"{_shown(value)} is not a mapping"))
        return
    if kind[0] == "{":
        for key, item in value.items():
            if item is None:
                findings.append(Finding(f"{path}.{key}", "an empty value"))
            _value(item, kind[1:], f"{path}.{key}", findings)
        return
    fields = _types()[kind]
    for key, item in value.items():
        where = f"{path}.{key}"
        if key in fields:
            _value(item, fields[key], where, findings)
        else:
            from difflib import get_close_matches

            near = get_close_matches(str(key), fields, n=1)
            findings.append(Finding(where, "no such field" + (f"; did you mean {near[0]}?" if near else "")))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
