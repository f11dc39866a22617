"""Several runs side by side: the table, and the article's three figures with its published values beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from runner.report.palette import FAINT, INK, LAYER_NAME, OURS, PUBLISHED, new_figure, styled
from runner.report.published import EFFICIENCY, LAYERS, SOURCE
from runner.report.published import LAYER_NAME as PUBLISHED_NAME
from runner.report.summary import percent
from runner.report.view import RunView

COLUMNS = (
    "run", "layer", "saves", "every", "ranks", "steps", "faults", "training goodput", "infra goodput",
    "efficiency", "recovery", "save stall", "write", "tokens/s", "MFU",
)  # fmt: skip
_SYNC, _ASYNC = "#D55E00", "#0072B2"


def comparison_rows(views: Sequence[RunView]) -> list[tuple[str, ...]]:
    """One row a run, columns as in COLUMNS."""

    def seconds(value: float | None) -> str:
        return f"{value:.2f} s" if value is not None else "-"

    rows: list[tuple[str, ...]] = []
    for view in views:
        g = view.goodput
        rows.append(
            (
                view.name,
                LAYER_NAME.get(view.layer, view.layer),
                view.mode,
                str(view.every or "-"),
                str(view.world),
                str(g.useful_steps),
                str(len(g.recoveries)),
                percent(g.training),
                percent(g.infra),
                percent(g.efficiency) if g.efficiency is not None else "-",
                seconds(view.mean_recovery),
                seconds(view.save_stall),
                seconds(view.write_seconds),
                f"{g.useful_tokens_per_s:,.0f}" if g.useful_tokens_per_s else "-",
                percent(g.mfu) if g.mfu is not None else "-",
            )
        )
    return rows


def comparison_figures(views: Sequence[RunView]) -> dict[str, Figure]:
    """The figures that these runs have something to say to."""
    figures: dict[str, Figure] = {}
    measured = [view for view in views if view.saves and view.goodput.efficiency is not None]
    calm = [view for view in measured if not view.goodput.recoveries]
    with styled():
        if calm:
            figures["efficiency_by_scale"] = _by_scale(calm)
            figures["efficiency_by_interval"] = _by_interval(calm)
        if any(view.goodput.recoveries for view in views):
            figures["layers"] = _layers([view for view in views if view.goodput.recoveries])
    return figures


def _points(axes: Axes, groups: Sequence[tuple[str, Sequence[tuple[str, float, bool]]]]) -> None:
    """Groups of bars: (label, [(sync or async, share, ours)]); the value above each bar."""
    width = 0.2
    for place, (_, bars) in enumerate(groups):
        for nth, (mode, value, ours) in enumerate(bars):
            x = place + (nth - (len(bars) - 1) / 2) * width
            colour = _SYNC if mode == "sync" else _ASYNC
            axes.bar(x, 100 * value, width * 0.92, color=colour if ours else "white", edgecolor=colour, lw=1.1,
                     hatch=None if ours else "////", alpha=1 if ours else 0.75)  # fmt: skip
            axes.text(x, 100 * value + 1.5, f"{100 * value:.1f}", ha="center", fontsize=8, color=INK)
    axes.set_xticks(range(len(groups)), [label for label, _ in groups], fontsize=8.5)
    axes.set(ylim=(0, 112), ylabel="training efficiency (%)", xlim=(-0.6, len(groups) - 0.4))
    axes.grid(False, axis="x")
    handles = []
    for label, colour, hatch, face in (
        ("sync, measured", _SYNC, None, _SYNC),
        ("async, measured", _ASYNC, None, _ASYNC),
        ("sync, published", _SYNC, "////", "white"),
        ("async, published", _ASYNC, "////", "white"),
    ):
        handles.append(Patch(facecolor=face, edgecolor=colour, hatch=hatch, label=label))
    axes.figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=8.5)


def _measured(views: Sequence[RunView]) -> list[tuple[str, float, bool]]:
    bars = []
    for mode in ("sync", "async"):
        values = [v.goodput.efficiency for v in views if v.mode == mode and v.goodput.efficiency is not None]
        if values:
            bars.append((mode, sum(values) / len(values), True))
    return bars


def _by_scale(views: Sequence[RunView]) -> Figure:
    figure = new_figure(9.6, 3.4)
    axes = figure.subplots()
    groups: list[tuple[str, list[tuple[str, float, bool]]]] = []
    for world in sorted({view.world for view in views}):
        ours = [view for view in views if view.world == world]
        longest = max(view.every or 0 for view in ours)
        ours = [view for view in ours if (view.every or 0) == longest]
        groups.append((f"{world} ranks\nevery {longest} steps", _measured(ours)))
    for p in EFFICIENCY:
        if p.every == 1000:
            groups.append(
                (
                    f"{p.gpus} GPUs\nevery 1000 steps",
                    [("sync", p.sync, False), ("async", p.asynchronous, False)],
                )
            )
    _points(axes, groups)
    return figure


def _by_interval(views: Sequence[RunView]) -> Figure:
    figure = new_figure(9.6, 3.4)
    axes = figure.subplots()
    groups: list[tuple[str, list[tuple[str, float, bool]]]] = []
    for every in sorted({view.every for view in views if view.every}, reverse=True):
        ours = [view for view in views if view.every == every]
        groups.append((f"every {every}\n{_gap(ours)}", _measured(ours)))
    for p in EFFICIENCY:
        if p.gpus == 64:
            gap = "gap 1.0 x write" if p.every == 100 else "gap 10 x write"
            groups.append(
                (f"every {p.every}\n{gap}", [("sync", p.sync, False), ("async", p.asynchronous, False)])
            )
    _points(axes, groups)
    return figure


def _gap(views: Sequence[RunView]) -> str:
    """How long training runs between two saves, in writes: the number that decides whether async can help."""
    ratios = [
        view.every * view.step_seconds / view.write_seconds
        for view in views
        if view.every and view.step_seconds and view.write_seconds
    ]
    return f"gap {sum(ratios) / len(ratios):.2g} x write" if ratios else ""


def _row_name(layer: str, measured: bool) -> str:
    """Of a row with a published bar and, where `measured`, one of ours: the article restarted real pods."""
    if layer == "kubernetes":
        return PUBLISHED_NAME[layer] + ("\n(measured: imitated)" if measured else "")
    return LAYER_NAME[layer].replace(" + ", "\n+ ")


def _layers(views: Sequence[RunView]) -> Figure:
    figure = new_figure(9.6, 3.6)
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 1))
    names = [layer for layer in LAYER_NAME if any(view.layer == layer for view in views)]
    published = {p.layer: p for p in LAYERS}
    shown = [*names, *(p.layer for p in LAYERS if p.layer not in names)]
    titles = ("training goodput (%)", "infra goodput (%)", "recovery per fault (s, log)")
    for panel, title, nth in zip(panels, titles, range(3), strict=True):
        for row, layer in enumerate(shown):
            mine = [_value(view, nth) for view in views if view.layer == layer]
            known = [value for value in mine if value is not None]
            if known:
                _layer_bar(panel, row - 0.19, sum(known) / len(known), OURS)
            if layer in published:
                p = published[layer]
                _layer_bar(panel, row + 0.19, (100 * p.training, 100 * p.infra, p.recovery)[nth], PUBLISHED)
        panel.set_yticks(
            range(len(shown)),
            [_row_name(layer, layer in names) for layer in shown] if nth == 0 else [],
        )
        panel.invert_yaxis()
        panel.set_title(title, fontsize=9.5, loc="left")
        panel.grid(False, axis="y")
        panel.margins(x=0.18)
        if nth < 2:
            panel.set_xlim(0, 118)
        else:
            panel.set_xscale("log")
    handles = [Patch(color=OURS, label="measured"), Patch(color=PUBLISHED, label=f"published ({SOURCE})")]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, fontsize=8.5)
    return figure


def _value(view: RunView, nth: int) -> float | None:
    if nth == 2:
        return view.mean_recovery
    return 100 * (view.goodput.training, view.goodput.infra)[nth]


def _layer_bar(panel: Axes, y: float, value: float, colour: str) -> None:
    panel.barh([y], [value], 0.34, color=colour)
    panel.annotate(
        f"{value:.3g}",
        (value, y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=INK if colour == OURS else FAINT,
    )
