"""The timeline of a run: the job, and below it each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from runner.ledger.codec import Record
from runner.ledger.events import FaultFired, LifeStarted, Loaded, StepEnded, StepsRolled
from runner.ledger.history import NS
from runner.ledger.split import KINDS, Kind, Span, fault_time, kept_through
from runner.report.palette import KIND_COLOUR, kind_legend, new_figure
from runner.report.view import RunView

MOST_RANKS = 32
"""Rows of the timeline; of larger jobs it shows so many ranks, evenly spread."""


def timeline(view: RunView) -> Figure:
    """The figure. Make it under `styled()`."""
    ranks = sorted({r.rank for r in view.records if r.rank >= 0})
    if len(ranks) > MOST_RANKS:
        ranks = [ranks[i * len(ranks) // MOST_RANKS] for i in range(MOST_RANKS)]
    figure = new_figure(9.6, 1.5 + 0.3 * (len(ranks) + 1))
    axes = figure.subplots()
    zero = view.history.start
    unit, name = _unit(view.goodput.wall)
    seen: set[Kind] = set()
    least = view.goodput.wall // 2000  # less than a pixel: it would only leave a hairline

    def bar(row: float, start: int, end: int, kind: Kind, height: float = 0.64) -> None:
        seen.add(kind)
        axes.broken_barh(
            [((start - zero) / unit, (end - start) / unit)],
            (row - height / 2, height),
            color=KIND_COLOUR[kind],
            lw=0,
        )

    for start, end, kind in merged(view.spans, least):
        bar(0, start, end, kind, 0.8)
    by_rank: dict[int, list[Record]] = defaultdict(list)
    for record in view.records:
        by_rank[record.rank].append(record)
    for row, rank in enumerate(ranks, start=1):
        for start, end, kind in rank_bars(view, by_rank[rank], least):
            bar(row, start, end, kind)
        for record in by_rank[rank]:
            if isinstance(record.event, FaultFired):
                axes.plot(
                    [(record.at - zero) / unit], [row], marker="X", ms=8, color="black", mec="white", mew=0.8
                )
    for recovery in view.goodput.recoveries:
        axes.axvline((recovery.at - zero) / unit, color=KIND_COLOUR["detection"], lw=0.8, ls="--", zorder=0)
    axes.set_yticks(range(len(ranks) + 1), ["job", *(f"rank {rank}" for rank in ranks)])
    axes.set(xlabel=f"wall time ({name})", xlim=(0, max(view.goodput.wall, 1) / unit))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    kind_legend(figure, [(kind, kind) for kind in KINDS if kind in seen])
    return figure


def _unit(wall: int) -> tuple[float, str]:
    if wall > 3 * 3600 * NS:
        return 3600.0 * NS, "h"
    return (60.0 * NS, "min") if wall > 300 * NS else (float(NS), "s")


def rank_bars(view: RunView, records: Sequence[Record], least: int = 0) -> list[tuple[int, int, Kind]]:
    """What one rank did, life by life: start-up, load, steps (kept or lost) and stalls; gaps where it did nothing."""
    bars: list[tuple[int, int, Kind]] = []
    index = {life.name: i for i, life in enumerate(view.history.lives)}
    kept = kept_through(view.history)
    cursor: dict[str, int] = {}
    stepping: set[str] = set()  # from a life's first step on, a step begins where the one before ended
    for r in records:
        i = index.get(r.life)
        if i is None:
            continue
        e, life = r.event, view.history.lives[i]
        at = cursor.setdefault(r.life, life.started)
        if isinstance(e, LifeStarted):
            cursor[r.life] = at = max(
                life.started, r.at - max(0, round((r.stamp.t - e.process_started) * NS))
            )
        if isinstance(e, Loaded):
            began = max(at, r.at - round(e.seconds * NS))
            bars += [(at, began, "startup"), (began, r.at, "load")]
            cursor[r.life] = r.at
            stepping.add(r.life)
        elif isinstance(e, StepEnded | StepsRolled):
            last = e.step if isinstance(e, StepEnded) else e.last
            start = at if r.life in stepping else max(at, r.at - round(e.seconds * NS))
            stepping.add(r.life)
            end = r.at if life.held_up is None else max(start, min(r.at, life.held_up))
            stalled = min(round(e.stalled * NS), end - start)
            limit = kept[i]
            bars.append((start, end - stalled, "useful" if limit is None or last <= limit else "replayed"))
            bars.append((end - stalled, end, "stall"))
            cursor[r.life] = r.at
    bars += _unfinished(view, records, cursor)
    return merged((Span(start, end, kind, 0) for start, end, kind in sorted(bars)), least)


def _unfinished(
    view: RunView, records: Sequence[Record], cursor: dict[str, int]
) -> list[tuple[int, int, Kind]]:
    """Start-ups that never came to a load, and the part of a step that a fault cut off."""
    loaded = {r.life for r in records if isinstance(r.event, Loaded | StepEnded)}
    ends = {r.life: r.at for r in records}
    bars: list[tuple[int, int, Kind]] = []
    for life in view.history.lives:
        if life.name in cursor and life.name not in loaded:
            bars.append((cursor[life.name], max(ends[life.name], cursor[life.name]), "startup"))
        elif life.name in cursor and not life.clean and life.seen is not None:
            fault = fault_time(life)
            bars.append((cursor[life.name], max(cursor[life.name], fault), "replayed"))
    return bars


def merged(spans: Iterable[Span], least: int = 0) -> list[tuple[int, int, Kind]]:
    """Neighbours of one kind as one: (start, end, kind). What is shorter than `least` goes with what comes before."""
    out: list[tuple[int, int, Kind]] = []
    for span in spans:
        if out and span.duration < least and out[-1][1] == span.start:
            out[-1] = (out[-1][0], span.end, out[-1][2])
            continue
        if out and out[-1][2] == span.kind and out[-1][1] == span.start:
            out[-1] = (out[-1][0], span.end, span.kind)
        elif span.end > span.start:
            out.append((span.start, span.end, span.kind))
    return out
