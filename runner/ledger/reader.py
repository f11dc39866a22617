"""Reads a run's ledger: all files of all processes, merged on one clock; while the run goes on, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.errors import InputError
from runner.ledger.clocks import wall_clocks
from runner.ledger.codec import Record, Stamp, decode_lines
from runner.ledger.events import Event
from runner.ledger.rollup import is_folded, ledger_files


@dataclass(frozen=True)
class RunLedger:
    """What a run's ledger holds.

    Attributes:
        folder: the run's folder.
        records: all events in the order of the common clock.
        unreadable: lines that could not be read (torn by a kill, or damaged).
        unknown: lines of kinds that this version does not know.
    """

    folder: Path
    records: tuple[Record, ...]
    unreadable: int
    unknown: int


def read_run(folder: Path) -> RunLedger:
    """Read the ledger of a run.

    Raises:
        InputError: there is no ledger in `folder`.
        OSError: a file of it cannot be read.
    """
    ledger = Path(folder) / "ledger"
    names = ledger_files(Path(folder))
    if not names:
        below = Path(folder) / "run"
        name = f"did you mean {below}?" if (below / "ledger").is_dir() else "name the folder of a run"
        raise InputError(f"{folder}: no ledger (expected {ledger}/*.jsonl); {name}")
    items: list[tuple[Event, Stamp]] = []
    unreadable = unknown = 0
    for path in names:
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # folded into its history while we read
            continue
        lines = data.split(b"\n")
        if path.name.endswith(".history.jsonl"):
            lines = lines[1:]
        elif is_folded(path):
            continue
        read = decode_lines(lines)
        items += read.items
        unreadable += read.unreadable
        unknown += read.unknown
    return RunLedger(Path(folder), merge(items), unreadable, unknown)


def merge(items: list[tuple[Event, Stamp]]) -> tuple[Record, ...]:
    """Events of any number of processes and nodes, on the run's common clock, in its order."""
    clocks = wall_clocks(items)
    records = [
        Record(event, stamp, round((stamp.m + clocks[stamp.node]) * 1_000_000_000)) for event, stamp in items
    ]
    records.sort(key=lambda record: record.at)
    return tuple(records)
