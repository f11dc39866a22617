"""Kubernetes objects as YAML that every YAML reader understands alike.

A text that some reader takes for a number, a truth value or nothing (`no`, `1e3`, `0o17`, `1:30`) is quoted, whatever
PyYAML itself would make of it; texts of several lines are literal blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z/][-A-Za-z0-9_./@+]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"])


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        style: str | None = "|"
    else:
        style = None if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def documents(objects: Sequence[dict[str, Any]]) -> str:
    """The objects as one YAML stream, keys in the order given."""
    parts = (
        yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=False) for item in objects
    )
    return "---\n" + "---\n".join(parts)
