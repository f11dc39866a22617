"""One event, one line: JSON objects with `kind`, the stamps of the writer and the event's own fields."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.ledger.events import EVENTS, Event
from runner.strictjson import is_time

# JSON has no NaN or infinity: `jq` and other readers must be able to take a diverged run's ledger.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOATS = {
    kind: tuple(f.name for f in dataclasses.fields(cls) if "float" in str(f.type))
    for kind, cls in EVENTS.items()
}
_MAY_DIVERGE = frozenset({"loss", "lr", "grad_norm"})  # of what is measured, all else is finite
_LARGEST = 1e30  # of a float: far from where sums and nanoseconds overflow


@dataclass(frozen=True)
class Stamp:
    """Where and when an event was written (see `runner.ledger.events`)."""

    t: float
    m: float
    node: str
    rank: int
    life: str
    pid: int


@dataclass(frozen=True)
class Record:
    """An event with its stamp, and `at`: the run's common clock, nanoseconds since the epoch.

    Integers, so that a split of a run's wall time adds up exactly.
    """

    event: Event
    stamp: Stamp
    at: int

    @property
    def rank(self) -> int:
        """The rank that wrote it; -1 for a launcher."""
        return self.stamp.rank

    @property
    def life(self) -> str:
        """The life of the job that it belongs to: the same text on all ranks."""
        return job_life(self.stamp.life)


def job_life(text: str) -> str:
    """The part of a stamp's `life` that is the same on all ranks: `attempt` of `attempt/rank`."""
    life, _, rank = text.rpartition("/")
    return life if life and rank.isdigit() else text


def encode(event: Event, stamp: Stamp) -> bytes:
    """The line of an event, newline included."""
    kind = type(event).__name__
    line: dict[str, Any] = {"kind": kind, **stamp.__dict__, **event.__dict__}
    for name in _FLOATS[kind]:
        value = line[name]
        if value is not None and not math.isfinite(value):
            line[name] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> tuple[Event, Stamp] | None:
    """The event of a line; None for a kind that this version does not know.

    Fields that this version does not know are left out.

    Raises:
        ValueError: the line is torn or not an event's: a field is missing, or holds what no writer means.
    """
    try:
        data = json.loads(line.decode())
        kind = data["kind"]
        if kind not in EVENTS:
            return None
        for name in _FLOATS[kind]:
            if isinstance(data.get(name), str):
                data[name] = _NON_FINITE[data[name]]
        fields = {name: fit(data[name], name) for name, fit in _FIT[kind] if name in data}
        stamp = Stamp(**{name: fit(data[name], name) for name, fit in _FIT_STAMP})
        return EVENTS[kind](**fields), stamp
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an event: {error!r}") from error


_Fit = Callable[[Any, str], Any]


def _text(value: Any, name: str) -> str:
    """A text that can be printed: a path may hold bytes that are none."""
    if type(value) is not str:
        raise ValueError(f"{name} is no text: {value!r}")
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _integer(value: Any, name: str) -> int:
    if type(value) is not int or abs(value) >= 1 << 63:
        raise ValueError(f"{name} is no integer: {value!r}")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (float, int) or not (abs(value) <= _LARGEST or name in _MAY_DIVERGE):
        raise ValueError(f"{name} is no number: {value!r}")
    return float(value)


def _clock(value: Any, name: str) -> float:
    seconds = _number(value, name)
    if not is_time(seconds):
        raise ValueError(f"{name} is no time: {value!r}")
    return seconds


def _switch(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} is neither true nor false: {value!r}")
    return value


def _texts(value: Any, name: str) -> list[str]:
    if type(value) is not list:
        raise ValueError(f"{name} is no list: {value!r}")
    return [_text(item, name) for item in value]


def _names(value: Any, name: str) -> dict[str, str]:
    if type(value) is not dict:
        raise ValueError(f"{name} is no mapping: {value!r}")
    return {_text(key, name): _text(item, name) for key, item in value.items()}


def _or_none(fit: _Fit) -> _Fit:
    return lambda value, name: None if value is None else fit(value, name)


def _fit(annotation: str) -> _Fit:
    """What checks the values of a field that an event declares so."""
    plain: dict[str, _Fit] = {"int": _integer, "float": _number, "bool": _switch, "str": _text,
                              "list[str]": _texts, "dict[str, str]": _names, "LoadSource": _text}  # fmt: skip
    if annotation.startswith("Literal["):  # a later version may have more of them
        return _text
    required = annotation.removesuffix(" | None")
    return _or_none(plain[required]) if required != annotation else plain[required]


_FIT = {
    kind: tuple((f.name, _fit(str(f.type))) for f in dataclasses.fields(cls)) for kind, cls in EVENTS.items()
}
_FIT_STAMP: tuple[tuple[str, _Fit], ...] = (
    ("t", _clock), ("m", _clock), ("node", _text), ("rank", _integer), ("life", _text), ("pid", _integer),
)  # fmt: skip


class Lines(NamedTuple):
    """What lines of a ledger hold.

    Attributes:
        items: their events, in the order of the lines.
        unreadable: lines that are torn or damaged.
        unknown: lines of kinds that this version does not know.
    """

    items: list[tuple[Event, Stamp]]
    unreadable: int
    unknown: int


def decode_lines(lines: Iterable[bytes]) -> Lines:
    """The events of lines; empty ones are passed over."""
    items: list[tuple[Event, Stamp]] = []
    unreadable = unknown = 0
    for line in lines:
        if not line:
            continue
        try:
            item = decode(line)
        except ValueError:
            unreadable += 1
            continue
        if item is None:
            unknown += 1
        else:
            items.append(item)
    return Lines(items, unreadable, unknown)
