"""What an unquoted YAML scalar means: the numbers that people write, and nothing that readers disagree about."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from runner.recipe.node import Doubtful

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
# What YAML 1.1 reads as a boolean, an octal, hexadecimal, binary or sexagesimal number, a date, or not a number,
# and what Python and C programmers write for null and the like. `none`, `on` and `off` may be choices of a field.
_DOUBTFUL_WORDS = frozenset(
    [
        "y",
        "Y",
        "n",
        "N",
        "yes",
        "Yes",
        "YES",
        "no",
        "No",
        "NO",
        "on",
        "On",
        "ON",
        "off",
        "Off",
        "OFF",
        "None",
        "none",
        "NONE",
        "nil",
        "undefined",
        "nan",
        "NaN",
        "NAN",
        "Nan",
        "inf",
        "Inf",
        "INF",
        "infinity",
        "Infinity",
        "=",
        "<<",
    ]
)
_DOUBTFUL_NUMBER = (
    r"[-+]?\.?(nan|NaN|NAN|Nan|inf|Inf|INF|infinity|Infinity)"
    r"|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[oO]?[0-7_]+|[-+]?0[bB][01_]+"
    r"|[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(:[0-9_]+)+(\.[0-9_]*)?"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"
)
_MOST_DIGITS = 400
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}|\$\{")


def read_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar; `Doubtful` where YAML readers disagree or the number is not finite."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    first = text[0]
    if first not in "+-.0123456789":
        return Doubtful(text) if text in _DOUBTFUL_WORDS else text
    if text[-1] in "smhd" and first in "123456789":
        return text  # a duration
    if len(text) <= _MOST_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            return number if abs(number) != float("inf") else Doubtful(text)
    return Doubtful(text) if re.fullmatch(_DOUBTFUL_NUMBER, text, re.ASCII) else text


class UnsetVariable(ValueError):
    """`${NAME}` names nothing."""


class Consulted(Mapping[str, str]):
    """The environment as `expand` reads it, which remembers what a recipe was made with.

    Attributes:
        found: the variables that were asked for and are set.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.found: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        value = self._environment[name]
        self.found[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._environment)

    def __len__(self) -> int:
        return len(self._environment)


def expand(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`${NAME}` and `${NAME:-default}` replaced once; `$${` stands for a literal `${`.

    The default also serves where the variable is set and empty, as in a shell. What a variable holds is not
    expanded again.

    Raises:
        UnsetVariable: a variable without a value or default.
        ValueError: `${` that starts no variable.
    """
    if "${" not in text:
        return text
    values = os.environ if environment is None else environment

    def one(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match[1], match[2]
        if name is None:
            raise ValueError("`${` starts no `${NAME}` or `${NAME:-default}`")
        value = values.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise UnsetVariable(f"environment variable {name} is not set")
        return value

    return _VARIABLE.sub(one, text)
