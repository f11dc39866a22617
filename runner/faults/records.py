"""Post-mortem records: one file for each fault that a rank met, under `<run>/faults/`. Standard library only."""

from __future__ import annotations

import glob
import json
import re
import time
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

from runner.strictjson import is_time, parse
from runner.system.durable import write_durably

FaultKind = Literal["exception", "hang", "interrupted", "died"]
NO_RANK = -1  # of a record about what ranks hang on: their launcher, fork server or supervisor


@dataclass(frozen=True)
class FaultRecord:
    """What one rank knows about the end of one life.

    Attributes:
        kind: `exception` in the training function; `hang`, this rank made no progress; `interrupted` by a fault
            elsewhere; `died`, the process vanished (told by its supervisor).
        rank: the rank it is about, or `NO_RANK`.
        step: steps it had finished.
        layer: the recovery layer.
        attempt: the life.
        what: exception type and message, or signal.
        consequence: True where the fault only follows from another rank's.
        stacks: Python stacks of all threads.
        phase: where the rank was: what it called last, in one line.
        time: wall clock, seconds.
    """

    kind: FaultKind
    rank: int
    step: int
    layer: str
    attempt: str
    what: str
    consequence: bool = False
    stacks: str = ""
    phase: str = ""
    time: float = field(default_factory=time.time)

    @property
    def signature(self) -> str:
        """The fault without what differs between two runs of the same mistake (addresses, process ids)."""
        return re.sub(r"0x[0-9a-f]+|\bpid \d+", "?", self.what)

    def __str__(self) -> str:
        """The fault in one line."""
        if self.kind == "died" or self.what.startswith("rank "):  # what names the rank, and how it ended
            return f"{self.what} after step {self.step}"
        return f"rank {self.rank} after step {self.step}: {self.what}"


def cause_of(records: list[FaultRecord]) -> FaultRecord:
    """Of the records of one life, that of the rank that had the fault first.

    Where something died that all ranks hang on, they ended because of it. A rank that died or hung is to blame before
    one that raised: the others only noticed.
    """
    order = {"died": 0, "hang": 1, "exception": 2, "interrupted": 3}
    causes = [record for record in records if not record.consequence] or records
    return min(
        causes, key=lambda record: (record.rank != NO_RANK, order[record.kind], record.step, record.time)
    )


def records_folder(run_folder: Path) -> Path:
    """Where the records of a run lie."""
    return run_folder / "faults"


def write_record(run_folder: Path, record: FaultRecord) -> Path:
    """Write a record durably; returns its file, which is another than that of any record before it."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.time))
    who = "launch" if record.rank == NO_RANK else f"rank{record.rank:05d}"
    name = f"{stamp}-{record.attempt}-{who}-{record.kind}"
    path = records_folder(run_folder) / f"{name}.json"
    for number in count(2):
        if not path.exists():
            break
        path = path.with_name(f"{name}-{number}.json")
    write_durably(path, json.dumps(asdict(record), indent=1))
    return path


def read_records(run_folder: Path, *, without: frozenset[str] = frozenset()) -> list[FaultRecord]:
    """All records of a run, oldest first; those in the files `without` are left out, and what is no record."""
    records = [
        record for path, record in _files(run_folder) if record is not None and path.name not in without
    ]
    return sorted(records, key=lambda record: record.time)


def records_of(run_folder: Path, attempt: str) -> list[FaultRecord]:
    """The records of one life, oldest first; the files of others are not read."""
    pattern = f"*-{glob.escape(attempt)}-rank*.json"
    paths = [path for path in records_folder(run_folder).glob(pattern) if not path.name.startswith(".")]
    found = [record for path in paths if (record := _record(path)) is not None and record.attempt == attempt]
    return sorted(found, key=lambda record: record.time)


def damaged_records(run_folder: Path) -> list[Path]:
    """Files among the records of a run that hold none: records are written whole, so something damaged them."""
    return [path for path, record in _files(run_folder) if record is None]


def _files(run_folder: Path) -> list[tuple[Path, FaultRecord | None]]:
    paths = sorted(
        path for path in records_folder(run_folder).glob("*.json") if not path.name.startswith(".")
    )
    return [(path, _record(path)) for path in paths]


def _record(path: Path) -> FaultRecord | None:
    known = {one.name for one in fields(FaultRecord)}  # a later version may say more
    try:
        content = parse(path.read_bytes())
        record = FaultRecord(**{name: value for name, value in content.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    numbers = (record.rank, record.step)
    texts = (record.kind, record.layer, record.attempt, record.what, record.stacks, record.phase)
    whole = all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts)
    whole = whole and is_time(record.time)
    return _printable(record) if whole and record.kind in get_args(FaultKind) else None


def _printable(record: FaultRecord) -> FaultRecord:
    """The record with bytes that are no text, as a path may have them, written as escapes."""
    told: dict[str, Any] = {
        name: value.encode("utf-8", "backslashreplace").decode()
        for name, value in asdict(record).items()
        if isinstance(value, str)
    }
    return replace(record, **told)
