"""What two recipes have otherwise, setting by setting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 60  # characters of a value in a message


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Settings that are not what they were, each with both values, in one line; nothing where there are none.

    A setting that only one of two versions of the product knows is no difference; a key of the model's configuration,
    which is the user's own, is one.
    """
    names = (before.keys() & now.keys()) | {
        name for name in before.keys() ^ now.keys() if name.startswith("model.architecture")
    }
    return ", ".join(
        f"{name}: {_short(before, name)} -> {_short(now, name)}"
        for name in sorted(names)
        if before.get(name) != now.get(name)
    )


def by_dotted_name(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, as JSON values."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            yield from by_dotted_name(value, name)
        else:
            yield name, value


def _short(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "not given"
    text = json.dumps(values[name], ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
