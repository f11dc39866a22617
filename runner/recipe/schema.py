"""The JSON Schema of recipes, for editors: types, ranges, choices, defaults, and the documentation of every setting.

It knows what a section may hold, not the rules across sections: `nvrx-run --validate` does. A recipe that `extends`
another is checked against variants of the sections in which nothing is required.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from runner.recipe.docstrings import SectionDoc, section_docs
from runner.recipe.table import Table, Type, table
from runner.recipe.units import format_duration

_PARTIAL = "Partial"
_DURATION = r"^\s*([0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*)+$"
_SIZE = r"^\s*[0-9]+(\.[0-9]+)?\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\s*$"
_VARIABLE = {"$ref": "#/$defs/Variable"}


def schema_text() -> str:
    """The schema as indented JSON."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """The schema."""
    sections, docs = table(), section_docs()
    defs: dict[str, Any] = {
        "Variable": {
            "type": "string",
            "pattern": r"\$\{",
            "description": "Filled in from the environment: `${NAME}` or `${NAME:-default}`.",
        }
    }
    for suffix in ("", _PARTIAL):
        for name in sections:
            defs[name + suffix] = _Writer(sections, docs, suffix).section(name)
    for suffix in ("", _PARTIAL):
        defs["Recipe" + suffix]["properties"]["extends"] = {
            "type": "string",
            "minLength": 1,
            "description": "Another recipe, relative to this file, over which this one is merged. `!replace` before a "
            "mapping puts it in the place of the other recipe's.",
        }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "nvrx-run recipe",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"#/$defs/Recipe{_PARTIAL}"},
        "else": {"$ref": "#/$defs/Recipe"},
        "$defs": defs,
    }


class _Writer:
    def __init__(self, sections: Table, docs: dict[str, SectionDoc], suffix: str) -> None:
        self.sections = sections
        self.docs = docs
        self.suffix = suffix

    def section(self, name: str) -> dict[str, Any]:
        doc = self.docs[name]
        properties: dict[str, dict[str, Any]] = {}
        for field, (kind, default) in self.sections[name].items():
            properties[field] = {"description": doc.fields[field]} if field in doc.fields else {}
            properties[field] |= self.type(kind)
            if default is not None and default[0] == "value" and default[1] is not None:
                properties[field]["default"] = (
                    list(default[1]) if isinstance(default[1], tuple) else default[1]
                )
            elif default is not None and default[0] == "seconds":
                properties[field]["default"] = format_duration(timedelta(seconds=default[1]))
        required = [field for field, (_, default) in self.sections[name].items() if default is None]
        written: dict[str, Any] = {"type": "object", "description": doc.text, "additionalProperties": False}
        if required and not self.suffix:
            written["required"] = required
        return written | {"properties": properties}

    def type(self, kind: Type) -> dict[str, Any]:
        write: dict[str, Any] = getattr(self, f"_{kind[0]}")(kind)
        return write

    def _optional(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [self.type(kind[1]), {"type": "null"}]}

    def _any(self, kind: Type) -> dict[str, Any]:
        return {}

    def _bool(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, _VARIABLE]}

    def _int(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", **_bounds(kind)}, _VARIABLE]}

    def _float(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", **_bounds(kind)}, _VARIABLE]}

    def _duration(self, kind: Type) -> dict[str, Any]:
        number = {"type": "number", "minimum": 0, **_bounds(kind)}
        text = {"type": "string", "pattern": _DURATION, "examples": ["90s", "20m", "1h30m"]}
        return {"anyOf": [text, number, _VARIABLE], "x-unit": "seconds"}

    def _size(self, kind: Type) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 0, **_bounds(kind)}
        text = {"type": "string", "pattern": _SIZE, "examples": ["64GiB", "500MB"]}
        return {"anyOf": [text, number, _VARIABLE], "x-unit": "bytes"}

    def _str(self, kind: Type) -> dict[str, Any]:
        _, shortest, longest, pattern = kind
        limits = {"minLength": shortest, "maxLength": longest, "pattern": pattern}
        written = {"type": "string"} | {key: value for key, value in limits.items() if value is not None}
        return {"anyOf": [written, _VARIABLE]} if pattern else written

    def _literal(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(kind[1])}, _VARIABLE]}

    def _list(self, kind: Type) -> dict[str, Any]:
        limits = {"minItems": kind[2], "maxItems": kind[3]}
        return {"type": "array", "items": self.type(kind[1])} | {
            k: v for k, v in limits.items() if v is not None
        }

    def _tuple(self, kind: Type) -> dict[str, Any]:
        count = len(kind[1])
        items = [self.type(inner) for inner in kind[1]]
        return {"type": "array", "items": items, "minItems": count, "maxItems": count}

    def _dict(self, kind: Type) -> dict[str, Any]:
        written: dict[str, Any] = {"type": "object", "additionalProperties": self.type(kind[2])}
        if kind[1][0] == "literal":
            written["propertyNames"] = {"enum": list(kind[1][1])}
        elif kind[1][0] == "str" and kind[1][3]:
            written["propertyNames"] = {"pattern": kind[1][3]}
        return written

    def _section(self, kind: Type) -> dict[str, Any]:
        return {"allOf": [{"$ref": f"#/$defs/{kind[1]}{self.suffix}"}]}

    def _tagged(self, kind: Type) -> dict[str, Any]:
        """One `if` a variant, so that an editor complains about the variant that is meant, not about all of them."""
        _, key, tags = kind
        cases = [
            {
                "if": {"properties": {key: {"const": tag}}, "required": [key]},
                "then": {"$ref": f"#/$defs/{name}{self.suffix}"},
            }
            for tag, name in tags.items()
        ]
        written: dict[str, Any] = {
            "type": "object",
            "properties": {key: {"enum": list(tags)}},
            "allOf": cases,
        }
        return written if self.suffix else written | {"required": [key]}

    def _oneof(self, kind: Type) -> dict[str, Any]:
        return {"anyOf": [self.type(inner) for inner in kind[1]]}


def _bounds(kind: Type) -> dict[str, Any]:
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    return {name: value for name, value in zip(names, kind[1:5], strict=True) if value is not None}
