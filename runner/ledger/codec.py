"""One event, one line: JSON objects with `kind`, the stamps of the writer and the event's own fields."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.ledger.events import EVENTS, Event

# JSON has no NaN or infinity: `jq` and other readers must be able to take a diverged run's ledger.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FIELDS = {kind: tuple(f.name for f in dataclasses.fields(cls)) for kind, cls in EVENTS.items()}
_FLOATS = {
    kind: tuple(f.name for f in dataclasses.fields(cls) if "float" in str(f.type))
    for kind, cls in EVENTS.items()
}


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
        ValueError: the line is torn or not an event's.
    """
    data = json.loads(line.decode())
    try:
        kind = data["kind"]
        if kind not in EVENTS:
            return None
        for name in _FLOATS[kind]:
            if isinstance(data.get(name), str):
                data[name] = _NON_FINITE[data[name]]
        stamp = Stamp(data["t"], data["m"], data["node"], data["rank"], data["life"], data["pid"])
        return EVENTS[kind](**{name: data[name] for name in _FIELDS[kind] if name in data}), stamp
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an event: {error!r}") from error


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
