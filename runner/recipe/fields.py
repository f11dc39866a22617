"""Field types that recipes share: durations, sizes, and the base class of every section."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_BYTES = {
    None: 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def parse_duration(value: Any) -> timedelta:
    """Seconds as a number, or text such as `90s`, `20m`, `1h30m`, `250ms`.

    Raises:
        ValueError: anything else, booleans and negative numbers included.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 90s, 20m or a number of seconds")
    if isinstance(value, int | float):
        if not 0 <= value < 10**9:
            raise ValueError("expected a duration of zero seconds or more")
        return timedelta(seconds=value)
    text = value.strip()
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip():
        raise ValueError("expected a duration such as 90s, 20m, 1h30m or a number of seconds")
    return parse_duration(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back to the same value: `20m`, `90s`, `250ms`."""
    milliseconds = round(value.total_seconds() * 1000)
    if milliseconds % 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def parse_size(value: Any) -> int:
    """Bytes as an integer, or text such as `64GiB`, `500MB`.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected a size such as 64GiB, 500MB or a number of bytes")
    if isinstance(value, int):
        if value < 0:
            raise ValueError("expected a size of zero bytes or more")
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError("expected a size such as 64GiB, 500MB or a number of bytes")
    return round(float(match[1]) * _BYTES[match[2]])


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": ["string", "number"], "examples": ["90s", "20m", 1.5], "unit": "seconds"}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["64GiB", 1024], "unit": "bytes"}),
]
Words = Annotated[tuple[str, ...], Field(strict=False)]  # a YAML list of strings
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of every section: frozen, strict about types, unknown keys refused.

    The string under each field is its documentation: unit, default, why that default. `--emit-schema` and the
    reference page collect those strings from the source, so they are written for the person who edits a recipe.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
