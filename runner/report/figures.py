"""The figures of one run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from runner.ledger.codec import Record
from runner.ledger.events import FaultFired, LifeStarted, Loaded, StepEnded, StepsRolled
from runner.ledger.history import NS
from runner.ledger.split import KINDS, Kind, Span, fault_time, kept_through
from runner.report.palette import INK, KIND_COLOUR, new_figure, styled
from runner.report.summary import hundred
from runner.report.view import RunView

MOST_RANKS = 32
"""Rows of the timeline; of larger jobs it shows so many ranks, evenly spread."""
MOST_POINTS = 4000
"""Points of a curve; longer ones are thinned to the eye's resolution, extremes kept."""


def figures_of(view: RunView) -> dict[str, Figure]:
    """name -> figure. Empty ones (a run without steps) are left out."""
    with styled():
        made = {"split": _split(view), "timeline": _timeline(view)}
        if view.goodput.useful_steps:
            made = {"loss": _loss(view), **made, "step_time": _step_time(view)}
        return made


def _loss(view: RunView) -> Figure:
    figure = new_figure(9.6, 3.4)
    axes = figure.subplots()
    kept_x: list[int] = []
    kept_y: list[float] = []
    lost = 0
    for life, last in zip(view.history.lives, kept_through(view.history), strict=True):
        good = [unit for unit in life.work if last is None or unit.last <= last]
        bad = life.work[len(good) :]
        kept_x += [unit.last for unit in good]
        kept_y += [unit.loss for unit in good]
        if bad:
            lost += sum(unit.count for unit in bad)
            joined = [*good[-1:], *bad]
            axes.plot(
                *thin([u.last for u in joined], [u.loss for u in joined]),
                color=KIND_COLOUR["replayed"],
                lw=1.6,
            )
    axes.plot(*thin(kept_x, kept_y), color=INK, lw=1.3, marker="." if len(kept_x) < 3 else "")
    handles = [Line2D([], [], color=INK, lw=1.3, label="kept")]
    if lost:
        handles.append(
            Line2D([], [], color=KIND_COLOUR["replayed"], lw=1.6, label=f"lost and made again ({lost} steps)")
        )
    top = axes.get_ylim()[1]
    for recovery in view.goodput.recoveries:
        life = max((x for x in view.history.lives if x.started <= recovery.at), key=lambda x: x.started)
        at = recovery.faults[0][2] if recovery.faults else life.last_step
        axes.axvline(at, color=KIND_COLOUR["detection"], lw=1, ls="--")
        axes.annotate(
            recovery.faults[0][3] if recovery.faults else "fault",
            (at, top), xytext=(3, -2), textcoords="offset points", va="top", fontsize=8, color="#9C4A78", rotation=90,
        )  # fmt: skip
        if recovery.resumed is not None:
            axes.plot(
                [recovery.resumed], [0], marker="^", ms=7, color="#0072B2", clip_on=False, zorder=5,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
    if view.goodput.recoveries:
        handles.append(Line2D([], [], color=KIND_COLOUR["detection"], ls="--", label="fault"))
        handles.append(
            Line2D([], [], color="#0072B2", marker="^", ls="", label="training went on after this step")
        )
    axes.set(xlabel="step", ylabel="loss")
    axes.margins(x=0.01)
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=8.5)
    return figure


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most about MOST_POINTS of a curve: of each stretch its lowest and its highest point."""
    if len(x) <= MOST_POINTS:
        return list(x), list(y)
    width = 2 * len(x) // MOST_POINTS + 1
    keep: list[int] = []
    for begin in range(0, len(x), width):
        stretch = range(begin, min(begin + width, len(x)))
        keep += sorted({min(stretch, key=lambda i: y[i]), max(stretch, key=lambda i: y[i])})
    return [x[i] for i in keep], [y[i] for i in keep]


def _split(view: RunView) -> Figure:
    figure = new_figure(9.6, 1.5)
    axes = figure.subplots()
    wall = view.goodput.wall or 1
    shares = hundred([view.goodput.split[kind] for kind in KINDS])
    left = 0.0
    for kind, share in zip(KINDS, shares, strict=True):
        width = 100 * view.goodput.split[kind] / wall
        if not width:
            continue
        axes.barh([0], [width], left=left, color=KIND_COLOUR[kind], edgecolor="white", lw=0.8, height=0.7)
        if width > 6:
            axes.text(
                left + width / 2, 0, f"{share / 100:.1f} %", ha="center", va="center", fontsize=9,
                color="white" if kind not in ("idle", "stall", "load") else INK,
            )  # fmt: skip
        left += width
    _no_frame(axes)
    axes.set(xlim=(0, 100), ylim=(-0.5, 0.5), xlabel="share of wall time (%)", yticks=[])
    _legend(figure, [(k, f"{k} {s / 100:.2f} %") for k, s in zip(KINDS, shares, strict=True) if s])
    return figure


def _legend(figure: Figure, entries: Iterable[tuple[Kind, str]]) -> None:
    patches = [Patch(color=KIND_COLOUR[kind], label=label) for kind, label in entries]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=8, fontsize=8.5, handlelength=1, columnspacing=1.2
    )


def _no_frame(axes: Axes) -> None:
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


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


def _timeline(view: RunView) -> Figure:
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
    _legend(figure, [(kind, kind) for kind in KINDS if kind in seen])
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
            stalled = min(round(e.stalled * NS), r.at - start)
            limit = kept[i]
            bars.append((start, r.at - stalled, "useful" if limit is None or last <= limit else "replayed"))
            bars.append((r.at - stalled, r.at, "stall"))
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


def _step_time(view: RunView) -> Figure:
    figure = new_figure(9.6, 2.8)
    axes = figure.subplots()
    times = [
        unit.seconds / unit.count
        for life in view.history.lives
        for unit in life.work
        for _ in range(min(unit.count, 50))
    ]
    stalls = [
        unit.seconds
        for life in view.history.lives
        for unit in life.work
        if unit.stalled > 0.02 * unit.seconds * NS
    ]
    ordered = sorted(times)
    longest = _quantile(ordered, 0.995) * 1.05
    shortest = min(ordered[0], longest) * 0.98
    bins = [shortest + (longest - shortest) * i / 60 for i in range(61)]
    counts, _, _ = axes.hist(
        [min(t, longest) for t in times], bins=bins, color=KIND_COLOUR["useful"], label="all steps"
    )
    if stalls:
        axes.hist(
            [min(t, longest) for t in stalls],
            bins=bins,
            color=KIND_COLOUR["stall"],
            label="with a stall over 2 %",
        )
    for share, text, dash in ((0.5, "median", "-"), (0.95, "p95", "--"), (0.99, "p99", ":")):
        value = _quantile(ordered, share)
        axes.axvline(value, color=INK, lw=1, ls=dash, label=f"{text} {_time(value)}")
    over = sum(t > longest for t in times)
    note = f"; {over} longer ones in the last bar, the longest {_time(ordered[-1])}" if over else ""
    if max(counts) > 40:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(ylabel="steps (log)", ylim=(0.7, None))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.set_ylabel("steps")
    axes.set(xlabel=f"time of a step (s), mean {_time(statistics.fmean(times))}{note}")
    axes.set(xlim=(shortest, longest))
    figure.legend(fontsize=8.5, loc="outside upper left", ncols=5)
    return figure


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _time(value: float) -> str:
    return f"{value:.3g} s"
