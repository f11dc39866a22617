"""Durations and sizes as people write them. Standard library only: the quick check of a recipe imports this file."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?", re.ASCII)
_BYTES = {
    None: 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_LONGEST_SECONDS = 10**9
_LARGEST_BYTES = 2**63
_LONGEST_TEXT = 64


class TooLargeError(ValueError):
    """A duration or size that is one, and beyond all use."""


def parse_duration(value: Any) -> timedelta:
    """Seconds as a number, or text such as `90s`, `20m`, `1h30m`, `250ms`.

    Raises:
        TooLargeError: 10^9 seconds or more.
        ValueError: anything else, booleans and negative numbers included.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 90s, 20m or a number of seconds")
    if isinstance(value, int | float):
        if value >= _LONGEST_SECONDS:
            raise TooLargeError("expected a duration below 10^9 seconds")
        if not value >= 0:  # nan is not, either
            raise ValueError("expected a duration from zero to 10^9 seconds")
        return timedelta(seconds=value)
    text = value.strip()
    parts = _DURATION.findall(text) if text.isascii() and len(text) <= _LONGEST_TEXT else []
    if not parts or _DURATION.sub("", text).strip():
        raise ValueError("expected a duration such as 90s, 20m, 1h30m or a number of seconds")
    return parse_duration(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def format_duration(value: timedelta) -> str | float:
    """The shortest form that `parse_duration` reads back to the same value: `20m`, `90s`, `250ms`."""
    seconds = value.total_seconds()
    if value.microseconds % 1000:
        return seconds
    if value.microseconds:
        return f"{round(seconds * 1000)}ms"
    whole = round(seconds)
    for unit, length in (("h", 3600), ("m", 60)):
        if whole and whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def rough_duration(seconds: float, digits: int = 2) -> str:
    """An estimate for people, to so many digits: `88 us`, `1.6 s`, `23 min`, `41 h`."""
    for unit, length, below in (
        ("us", 1e-6, 1e-3),
        ("ms", 1e-3, 1.0),
        ("s", 1.0, 600.0),
        ("min", 60.0, 7200.0),
    ):
        if 0 < seconds < below:
            return f"{_rounded(seconds / length, digits)} {unit}"
    return f"{_rounded(seconds / 3600, digits)} h" if seconds else "0 s"


def _rounded(value: float, digits: int) -> str:
    """Without an exponent: `2900`, where `.2g` says `2.9e+03`."""
    return f"{float(f'{value:.{digits}g}'):.12g}"


def parse_size(value: Any) -> int:
    """Bytes as an integer, or text such as `64GiB`, `500MB`.

    Raises:
        TooLargeError: 2^63 bytes or more.
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected a size such as 64GiB, 500MB or a number of bytes")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip()) if len(value) <= _LONGEST_TEXT else None
        if not match:
            raise ValueError("expected a size such as 64GiB, 500MB or a number of bytes")
        value = round(float(match[1]) * _BYTES[match[2]])
    if value >= _LARGEST_BYTES:
        raise TooLargeError("expected a size below 2^63 bytes")
    if value < 0:
        raise ValueError("expected a size from zero to 2^63 bytes")
    return value


def format_size(value: float) -> str:
    """Bytes for people, three digits: `1.52 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB" if value < 999.5 else f"{value:.0f} TiB"
