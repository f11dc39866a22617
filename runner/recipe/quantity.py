"""Kubernetes quantities: `500m`, `16`, `1.5Gi`."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(
    r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?\d+))?"
)
_UNITS = {
    None: Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip


def parse_quantity(text: str | int | float) -> Decimal | None:
    """The number that a quantity stands for, in its base unit; None where it is none."""
    if isinstance(text, bool):
        return None
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        return None
    number = Decimal(match[1]) * _UNITS[match[2]]
    return number * Decimal(10) ** int(match[3]) if match[3] else number
