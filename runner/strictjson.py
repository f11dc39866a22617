"""JSON of files that may be damaged: whatever is in them, it is a value or a `ValueError`. Standard library only."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_END_OF_TIME = 253_402_300_800


def parse(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none; it holds NaN or an infinity, which JSON does not have, and no integer can be made of;
            or it is nested deeper than Python's parser goes.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text, parse_constant=_refused, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_time(value: object) -> bool:
    """Whether it can be seconds since the epoch: before the year 10000, which no calendar here knows."""
    return isinstance(value, int | float) and 0 <= value < _END_OF_TIME


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        _refused(digits)
    return number
