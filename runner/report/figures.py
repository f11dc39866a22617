"""The figures of one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from runner.ledger.history import NS
from runner.ledger.split import KINDS, kept_through
from runner.report.palette import INK, KIND_COLOUR, kind_legend, new_figure, styled
from runner.report.summary import hundred
from runner.report.timeline import timeline
from runner.report.view import RunView

MOST_POINTS = 4000
"""Points of a curve; longer ones are thinned to the eye's resolution, extremes kept."""


def figures_of(view: RunView) -> dict[str, Figure]:
    """name -> figure. Empty ones (a run without steps) are left out."""
    with styled():
        made = {"split": _split(view), "timeline": timeline(view)}
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
    kind_legend(figure, [(k, f"{k} {s / 100:.2f} %") for k, s in zip(KINDS, shares, strict=True) if s])
    return figure


def _no_frame(axes: Axes) -> None:
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


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
