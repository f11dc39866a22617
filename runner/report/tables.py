"""The report's data as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from runner.ledger.history import NS
from runner.ledger.split import kept_through
from runner.report.view import RunView


def run_json(view: RunView) -> dict[str, Any]:
    """The account of a run: times in seconds, shares of 1."""
    g = view.goodput
    return {
        "name": view.name,
        "folder": str(view.folder),
        "layer": view.layer,
        "save_mode": view.mode,
        "save_every": view.every,
        "ranks": view.world,
        "versions": view.versions,
        "goes_on": g.going_on,
        "wall_s": g.wall / NS,
        "split_s": {kind: value / NS for kind, value in g.split.items()},
        "training_goodput": g.training,
        "infra_goodput": g.infra,
        "training_efficiency": g.efficiency,
        "useful_steps": g.useful_steps,
        "replayed_steps": g.replayed_steps,
        "steps_lost": g.steps_lost,
        "useful_tokens": g.useful_tokens,
        "useful_tokens_per_s": g.useful_tokens_per_s,
        "mfu": g.mfu,
        "step_s": view.step_seconds,
        "restarts": g.restarts,
        "recoveries": [
            {
                "at_s": (r.at - view.history.start) / NS,
                "cause": r.cause,
                "injected": [
                    {"fault": number, "rank": rank, "step": step, "type": kind}
                    for number, rank, step, kind in r.faults
                ],
                "mended_by": r.by,
                "parts_s": {part: value / NS for part, value in r.parts.items()},
                "total_s": r.total / NS if r.finished else None,
                "steps_lost": r.lost,
                "resumed_after": r.resumed,
                "source": r.source,
            }
            for r in g.recoveries
        ],
        "saves": [
            {
                "step": s.step,
                "mode": s.mode,
                "at_s": (s.at - view.history.start) / NS,
                "stall_s": s.stalled,
                "write_s": s.written,
                "bytes": s.bytes,
                "outcome": s.outcome,
                "reason": s.reason,
            }
            for s in view.saves
        ],
        "snapshots": {
            "count": view.snapshots.count,
            "without_a_save": view.snapshots.timed,
            "stall_s": view.snapshots.stalled,
        },
        "unreadable_lines": view.ledger.unreadable,
    }


def steps_csv(view: RunView) -> str:
    """Every execution of every step (folded ones as ranges)."""
    rows: list[Sequence[object]] = []
    for life, last in zip(view.history.lives, kept_through(view.history), strict=True):
        for unit in life.work:
            rows.append(
                (
                    unit.first,
                    unit.last,
                    life.name,
                    f"{(unit.end - view.history.start) / NS:.6f}",
                    f"{unit.seconds:.6f}",
                    f"{unit.stalled / NS:.6f}",
                    unit.tokens,
                    unit.loss if math.isfinite(unit.loss) else str(unit.loss),
                    int(last is None or unit.last <= last),
                )
            )
    return _csv(
        ("first_step", "last_step", "life", "ended_s", "seconds", "stalled_s", "tokens", "loss", "kept"), rows
    )


def recoveries_csv(view: RunView) -> str:
    """Every recovery."""
    parts = ("detection", "teardown", "idle", "startup", "load", "step")
    header = (
        "at_s",
        "cause",
        "mended_by",
        *(f"{part}_s" for part in parts),
        "total_s",
        "steps_lost",
        "resumed_after",
    )
    rows = [
        (
            f"{(r.at - view.history.start) / NS:.6f}",
            r.cause,
            r.by,
            *(f"{r.parts[part] / NS:.6f}" for part in parts),
            f"{r.total / NS:.6f}" if r.finished else "",
            r.lost,
            "" if r.resumed is None else r.resumed,
        )
        for r in view.goodput.recoveries
    ]
    return _csv(header, rows)


def saves_csv(view: RunView) -> str:
    """Every save."""
    rows = [
        (
            s.step,
            s.mode,
            f"{(s.at - view.history.start) / NS:.6f}",
            s.stalled,
            s.written,
            s.bytes,
            s.outcome,
            s.reason,
        )
        for s in view.saves
    ]
    return _csv(("step", "mode", "at_s", "stall_s", "write_s", "bytes", "outcome", "reason"), rows)


def table_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Any table."""
    return _csv(header, rows)


def _csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()
