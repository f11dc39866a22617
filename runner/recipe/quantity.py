"""Numbers in Kubernetes objects: quantities (`500m`, `16`, `1.5Gi`), and how large an integer may be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

LARGEST_INT32, LARGEST_INT64 = 2**31 - 1, 2**63 - 1
MOST_PODS = 100_000  # that an Indexed Job may run at a time
_QUANTITY = re.compile(
    r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?\d+))?"
)
_UNITS: dict[str | None, str | int] = {
    None: "1", "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15",
    "E": "1e18", "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def parse_quantity(text: str | int | float) -> Decimal | None:
    """The number that a quantity stands for, in its base unit; None where it is none."""
    from decimal import Decimal

    if isinstance(text, bool):
        return None
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        return None
    number = Decimal(match[1]) * Decimal(_UNITS[match[2]])
    return number * Decimal(10) ** int(match[3]) if match[3] else number
