"""The saves of a run: what each cost, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from runner.ledger.codec import Record, decode
from runner.ledger.events import SaveCommitted, SaveFailed, SaveStarted, SnapshotTaken, StepsRolled
from runner.ledger.rollup import ledger_files

Outcome = Literal["committed", "failed", "not committed"]


@dataclass(frozen=True)
class Save:
    """One durable save. Times in seconds.

    Attributes:
        stalled: what training waited for it, on the rank that waited longest.
        written: from the hand-over to the commit; None where it was not committed.
        at: when it was handed over, nanoseconds of the run's clock.
    """

    step: int
    life: str
    mode: str
    at: int
    stalled: float
    written: float | None = None
    bytes: int | None = None
    outcome: Outcome = "not committed"
    reason: str = ""


@dataclass(frozen=True)
class Snapshots:
    """In-memory snapshots of the lowest rank.

    Attributes:
        count: how many.
        timed: those of which it is known what training waited for them and for nothing else: a snapshot that became a
            checkpoint may have waited for the save before it, which is that save's cost, and folded ones have no times.
        stalled: what training waited for the timed ones, seconds.
    """

    count: int
    timed: int
    stalled: float

    @property
    def mean(self) -> float:
        """What training waits for one, seconds."""
        return self.stalled / self.timed if self.timed else 0.0


def saves_of(records: Sequence[Record]) -> tuple[Save, ...]:
    """All saves in order. A step that was saved again by a later life is another save."""
    saves: dict[tuple[str, int], Save] = {}
    for r in records:
        e = r.event
        if isinstance(e, SaveStarted):
            key = (r.life, e.step)
            old = saves.get(key)
            if old is None:
                saves[key] = Save(e.step, r.life, e.mode, r.at, e.stalled)
            else:
                saves[key] = replace(old, at=min(old.at, r.at), stalled=max(old.stalled, e.stalled))
    for r in records:
        e = r.event
        if isinstance(e, SaveCommitted | SaveFailed):
            # A writer that outlives a restart may commit under the next life: the save it began is meant.
            key = (r.life, e.step)
            if key not in saves:
                key = next((k for k in reversed(saves) if k[1] == e.step), key)
            save = saves.get(key, Save(e.step, r.life, "?", r.at, 0.0))
            if isinstance(e, SaveCommitted):
                saves[key] = replace(save, written=e.seconds, bytes=e.bytes, outcome="committed")
            elif save.outcome != "committed":
                saves[key] = replace(save, outcome="failed", reason=e.reason)
    return tuple(sorted(saves.values(), key=lambda save: save.at))


def snapshots_of(records: Sequence[Record]) -> Snapshots:
    """The snapshots of the lowest rank that took any."""
    lowest = min((r.rank for r in records if isinstance(r.event, SnapshotTaken | StepsRolled)), default=None)
    saved = {(r.life, r.event.step) for r in records if r.rank == lowest and isinstance(r.event, SaveStarted)}
    count, timed, stalled = 0, 0, 0.0
    for r in records:
        if r.rank == lowest:
            if isinstance(r.event, SnapshotTaken):
                count += 1
                if (r.life, r.event.step) not in saved:
                    timed += 1
                    stalled += r.event.stalled
            elif isinstance(r.event, StepsRolled):
                count += r.event.snapshots
    return Snapshots(count, timed, stalled)


def newest_saved(folder: Path) -> int:
    """The highest step of which a run's ledger says that a checkpoint was committed; 0 where there is none.

    Looks for these events alone, so that a ledger of thousands of ranks takes no longer than reading it.

    Args:
        folder: the run's.
    """
    newest = 0
    for path in ledger_files(folder):
        if not path.name.startswith("rank-"):
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # folded into its history while we look: that is on the way
            continue
        for line in data.split(b"\n"):
            if b"SaveCommitted" not in line:
                continue
            with suppress(ValueError):  # torn
                item = decode(line)
                if item is not None and isinstance(item[0], SaveCommitted):
                    newest = max(newest, item[0].step)
    return newest
