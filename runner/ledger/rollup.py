"""Folds old step events into sums, so that the ledger of a month-long run stays small.

A process's history file `<base>.history.jsonl` begins with a line that says up to which segment it holds; readers
skip those segments, so a crash between the replacement of the history and the removal of a segment loses and
doubles nothing. What is not a step or a snapshot is kept as it is. Where the history itself outgrows its limit,
neighbouring sums are merged: precision of the oldest steps halves, size does not grow.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.ledger.codec import Stamp, decode, encode
from runner.ledger.events import Event, SnapshotTaken, StepEnded, StepsRolled
from runner.strictjson import parse

_SEGMENT = re.compile(r"(?P<base>.+)\.(?P<number>\d{3,})\.jsonl")
STEPS_A_LINE = 32
"""Steps that the first folding puts into one line."""


def history_path(folder: Path, base: str) -> Path:
    """The history file of a process's ledger."""
    return folder / f"{base}.history.jsonl"


def ledger_files(run_folder: Path) -> list[Path]:
    """The files of a run's ledger. What is no file, and would keep who reads it waiting (a pipe), is none of it."""
    return sorted(path for path in (run_folder / "ledger").glob("*.jsonl") if path.is_file())


def is_folded(path: Path) -> bool:
    """Whether the history of a file's process holds what is in the file."""
    match = _SEGMENT.fullmatch(path.name)
    return match is not None and folded_through(history_path(path.parent, match["base"])) >= int(
        match["number"]
    )


def folded_through(history: Path) -> int:
    """Number of the last segment that a history holds; -1 where there is none or it is unreadable."""
    try:
        with history.open("rb") as file:
            return int(parse(file.readline())["folded_through"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def fold(folder: Path, base: str, segment: int, *, limit_bytes: int) -> None:
    """Move segment number `segment` into the history file and remove it.

    Raises:
        OSError: the history could not be written; nothing is lost.
    """
    history = history_path(folder, base)
    source = folder / f"{base}.{segment:03d}.jsonl"
    known = folded_through(history)
    if known < segment:
        kept = list(_events(history.read_bytes().splitlines()[1:])) if known >= 0 else []
        with source.open("rb") as file:
            kept += _roll(_events(file), STEPS_A_LINE)
        lines = [encode(event, stamp) for event, stamp in kept]
        while sum(map(len, lines)) > limit_bytes:
            merged = list(_roll(iter(kept), 2 * max(_width(event) for event, _ in kept)))
            if len(merged) == len(kept):
                break  # nothing left to merge
            kept = merged
            lines = [encode(event, stamp) for event, stamp in kept]
        partial = history.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(json.dumps({"folded_through": segment}).encode() + b"\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(history)
    source.unlink(missing_ok=True)  # an interrupted folding may have come so far


def _events(lines: Iterable[bytes]) -> Iterator[tuple[Event, Stamp]]:
    for line in lines:
        try:
            item = decode(line)
        except ValueError:
            continue
        if item is not None:
            yield item


def _width(event: Event) -> int:
    return event.last - event.first + 1 if isinstance(event, StepsRolled) else 1


def _as_rolled(event: Event) -> StepsRolled | None:
    if isinstance(event, StepsRolled):
        return event
    if isinstance(event, StepEnded):
        e = event
        return StepsRolled(e.step, e.step, e.seconds, e.stalled, e.tokens, e.loss, e.seconds, 0)
    return None


def _join(a: StepsRolled, b: StepsRolled) -> StepsRolled:
    n, k = _width(a), _width(b)
    return StepsRolled(
        first=a.first,
        last=b.last,
        seconds=a.seconds + b.seconds,
        stalled=a.stalled + b.stalled,
        tokens=a.tokens + b.tokens,
        loss=(a.loss * n + b.loss * k) / (n + k),
        slowest=max(a.slowest, b.slowest),
        snapshots=a.snapshots + b.snapshots,
    )


def _roll(events: Iterable[tuple[Event, Stamp]], width: int) -> Iterator[tuple[Event, Stamp]]:
    """Consecutive steps of one life -> sums over up to `width` of them; the rest unchanged, in order."""
    open_: tuple[StepsRolled, Stamp] | None = None
    for event, stamp in events:
        rolled = _as_rolled(event)
        if isinstance(event, SnapshotTaken) and open_ is not None:
            seen, when = open_
            open_ = (StepsRolled(**{**seen.__dict__, "snapshots": seen.snapshots + 1}), when)
            continue
        if (
            rolled is not None
            and open_ is not None
            and open_[1].life == stamp.life
            and open_[1].rank == stamp.rank
            and rolled.first == open_[0].last + 1
            and _width(open_[0]) + _width(rolled) <= width
        ):
            open_ = (_join(open_[0], rolled), stamp)
            continue
        if open_ is not None:
            yield open_
            open_ = None
        if rolled is not None:
            open_ = (rolled, stamp)
        else:
            yield event, stamp
    if open_ is not None:
        yield open_
