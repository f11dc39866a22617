"""A run as the report sees it: its account, and the facts that tell it from other runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.ledger.codec import Record
from runner.ledger.events import LaunchStarted, LifeStarted
from runner.ledger.goodput import Goodput, account
from runner.ledger.history import NS, History
from runner.ledger.reader import RunLedger, read_run
from runner.ledger.refusals import without_refusals
from runner.ledger.saves import Save, Snapshots, saves_of, snapshots_of
from runner.ledger.split import Span
from runner.strictjson import parse

LABEL_FILE = "cell.json"
"""Written by `nvrx-bench` into each cell's folder: {"name": ..., "baseline": "kubernetes" | null}."""

NO_MATPLOTLIB = "the page and figures need matplotlib: pip install matplotlib"


@dataclass(frozen=True)
class RunView:
    """Everything that the report says about one run.

    Attributes:
        name: how the run is called in tables and figures.
        layer: recovery layer, or `kubernetes` for the imitated baseline.
        mode: of its saves: `sync`, `async`, or `-`.
        every: steps between saves (the most frequent distance; None with fewer than two saves).
        gap: undisturbed training time between two saves, seconds.
    """

    name: str
    folder: Path
    ledger: RunLedger
    goodput: Goodput
    history: History
    spans: tuple[Span, ...]
    saves: tuple[Save, ...]
    snapshots: Snapshots
    layer: str
    mode: str
    world: int
    every: int | None
    versions: dict[str, str]

    @property
    def records(self) -> tuple[Record, ...]:
        """The run's events."""
        return self.ledger.records

    @property
    def step_seconds(self) -> float | None:
        """Mean undisturbed step, seconds."""
        goodput = self.goodput
        return goodput.split["useful"] / NS / goodput.useful_steps if goodput.useful_steps else None

    @property
    def write_seconds(self) -> float | None:
        """Mean time from hand-over to commit, seconds."""
        written = [save.written for save in self.saves if save.written is not None]
        return sum(written) / len(written) if written else None

    @property
    def save_stall(self) -> float | None:
        """Mean time that training waited for a save, seconds."""
        return sum(save.stalled for save in self.saves) / len(self.saves) if self.saves else None

    @property
    def mean_recovery(self) -> float | None:
        """Mean time from a fault to the first finished step after it, seconds."""
        done = [r.total / NS for r in self.goodput.recoveries if r.finished]
        return sum(done) / len(done) if done else None


def view_run(folder: Path) -> RunView:
    """Read and account for the run in `folder`.

    Raises:
        InputError: there is no ledger, or nothing in it.
    """
    ledger = read_run(folder)
    if not ledger.records:
        from runner.errors import InputError

        raise InputError(f"{folder}: the ledger holds nothing yet; ask again when the run has begun")
    ledger = replace(ledger, records=without_refusals(ledger.records))
    goodput, history, spans = account(ledger.records)
    saves = saves_of(ledger.records)
    label = _label(folder)
    launches = [r.event for r in ledger.records if isinstance(r.event, LaunchStarted)]
    layer = launches[-1].recovery_layer if launches else "-"
    return RunView(
        name=str(label.get("name") or folder.resolve().name),
        folder=folder,
        ledger=ledger,
        goodput=goodput,
        history=history,
        spans=spans,
        saves=saves,
        snapshots=snapshots_of(ledger.records),
        layer=str(label.get("baseline") or layer),
        mode=saves[-1].mode if saves else "-",
        world=max(
            (r.event.world_size for r in ledger.records if isinstance(r.event, LifeStarted)), default=0
        ),
        every=_distance(saves),
        versions=launches[-1].versions if launches else {},
    )


def _label(folder: Path) -> dict[str, Any]:
    return next(filter(None, (read_label(place / LABEL_FILE) for place in (folder, folder.parent))), {})


def read_label(path: Path) -> dict[str, Any]:
    """What `nvrx-bench` wrote about a cell; nothing where there is no such file, or something else in it."""
    if not path.is_file():
        return {}
    try:
        data = parse(path.read_bytes())
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _distance(saves: tuple[Save, ...]) -> int | None:
    steps = sorted({save.step for save in saves})
    gaps = Counter(b - a for a, b in zip([0, *steps], steps, strict=False))
    return gaps.most_common(1)[0][0] if len(steps) >= 2 else None
