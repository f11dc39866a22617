"""The page of one run and the page of several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape

from runner.ledger.history import NS
from runner.ledger.split import KINDS
from runner.recipe.units import format_size
from runner.report.advice import ADVICE_COLUMNS, advice_rows
from runner.report.compare import COLUMNS, comparison_rows
from runner.report.palette import KIND_COLOUR, LAYER_NAME
from runner.report.published import EFFICIENCY, LAYERS, SOURCE
from runner.report.published import LAYER_NAME as PUBLISHED_NAME
from runner.report.shell import cards, download, drawing, html_table, page
from runner.report.startup import startup_rows
from runner.report.summary import MEANING, count, ending, hundred, part_of, percent, seconds
from runner.report.tables import recoveries_csv, run_json, saves_csv, steps_csv, table_csv
from runner.report.view import RunView

MOST_EMBEDDED = 2_000_000
"""Bytes of a CSV that the page carries in itself; larger ones lie beside it only."""
CAPTIONS = {
    "loss": "Loss by step. Orange: executions whose result was lost with a fault and made again.",
    "timeline": "Wall time. First row: the job; below, each rank. A cross is an injected fault on its rank, a dashed "
    "line the moment at which trouble began; where a row is empty, the rank was being cleared away or not running.",
    "split": "Every moment of the wall time has exactly one use; the parts sum to the whole.",
    "step_time": "How long steps took, replayed ones included.",
    "efficiency_by_scale": "Training efficiency: share of stepping time that was not spent waiting for checkpoints. "
    f"Hatched: published ({SOURCE}).",
    "efficiency_by_interval": "The same by interval. Asynchronous saves hide the write behind the training between two "
    "saves, so the gap as a multiple of the write decides; the published runs wrote for about 275 s.",
    "layers": "Recovery layers side by side; the published runs: 2 nodes, 2000 steps, a save every 500, five faults.",
}


def run_page(
    view: RunView,
    svgs: Mapping[str, str],
    *,
    now: datetime,
    refresh: int = 0,
    missing: Sequence[tuple[str, str]] = (),
) -> str:
    """The page of one run, figures embedded; `missing` names runs that belong beside it, and why they are not here."""
    goodput = view.goodput
    sections = [("split", "Where the wall time went", _split(view, svgs))]
    if "loss" in svgs:
        sections.append(("loss", "Loss", drawing("loss", svgs["loss"], CAPTIONS["loss"])))
    sections.append(("timeline", "Timeline", drawing("timeline", svgs["timeline"], CAPTIONS["timeline"])))
    sections.append(("faults", "Faults and recoveries", _faults(view)))
    if view.history.lives:
        table = html_table(*startup_rows(view), text=("state from",))
        note = (
            "Of each phase the rank that took longest; seconds of the phases of one rank may add up to less. Before "
            "the processes of a life exist, its start-up is the launcher's and its fork server's: launch, which no "
            "rank's row of the timeline shows."
        )
        sections.append(("startup", "Start-up", f'{table}<p class="note">{note}</p>'))
    sections.append(("checkpoints", "Checkpoints", _saves(view)))
    if "step_time" in svgs:
        sections.append(
            ("steps", "Step time", drawing("step_time", svgs["step_time"], CAPTIONS["step_time"]))
        )
    rows, note = advice_rows(view)
    if rows:
        advice = (
            html_table(ADVICE_COLUMNS, rows)
            + f'<p class="note">{escape(note)}. Young 1974, Daly 2006, two levels '
        )
        advice += "after Vaidya 1998 and Di et al. 2017.</p>"
        sections.append(("intervals", "How often to save", advice))
    sections += _missing(missing)
    sections.append(("data", "Data and versions", _data(view)))
    state = "goes on, or was lost without an end" if goodput.going_on else ending(view.history)
    lead = (
        f"{escape(LAYER_NAME.get(view.layer, view.layer))} recovery, {view.mode} checkpoints, "
        f"{view.world} ranks. Started {_date(view.history.start)}; {state}. Report of {now:%Y-%m-%d %H:%M} UTC."
    )
    return page(f"Run {view.name}", lead, sections, head=_cards(view), refresh=refresh)


def comparison_page(
    views: Sequence[RunView],
    svgs: Mapping[str, str],
    *,
    now: datetime,
    pages: Sequence[str] | None = None,
    missing: Sequence[tuple[str, str]] = (),
) -> str:
    """The page of several runs. `pages`: addresses of their own; `missing`: those left out, and why."""
    rows = comparison_rows(views)
    names = [escape(view.name) for view in views]
    if pages is not None:
        names = [f'<a href="{escape(at)}">{name}</a>' for name, at in zip(names, pages, strict=True)]
    shown = [(name, *row[1:]) for name, row in zip(names, rows, strict=True)]
    sections = [("table", "Runs", html_table(COLUMNS, shown, text=("layer", "saves"), raw_first=True))]
    sections += _missing(missing)
    headings = {
        "layers": "Recovery layers",
        "efficiency_by_interval": "Efficiency by save interval",
        "efficiency_by_scale": "Efficiency by scale",
    }
    for name, heading in headings.items():
        if name in svgs:
            sections.append((name.replace("_", "-"), heading, drawing(name, svgs[name], CAPTIONS[name])))
    sections.append(("published", "Published values", _published()))
    data = [run_json(view) for view in views]
    files = download("comparison.csv", table_csv(COLUMNS, rows), "text/csv")
    files += download("comparison.json", json.dumps(data, indent=1), "application/json")
    sections.append(("data", "Data", f'<p class="files">{files}</p>'))
    lead = (
        f"{len(views)} runs side by side. Report of {now:%Y-%m-%d %H:%M} UTC. Published values come from another "
        "model, other machines and another storage: compare how modes and layers stand to each other."
    )
    return page("Comparison of runs", lead, sections)


def _missing(missing: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """A section on the runs that a reader would look for in vain."""
    if not missing:
        return []
    return [("missing", "Not here", html_table(("run", "why"), missing, text=("why",)))]


def _date(at: int) -> str:
    return f"{datetime.fromtimestamp(at / NS, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _cards(view: RunView) -> str:
    g = view.goodput
    entries = [
        (percent(g.training), "training goodput", "useful / wall time"),
        (percent(g.infra), "infra goodput", "1 - downtime of faults / wall time"),
    ]
    if g.efficiency is not None:
        entries.append(
            (percent(g.efficiency), "training efficiency", "stepping time not spent on checkpoints")
        )
    entries.append(
        (
            seconds(g.wall),
            "wall time",
            f"{count(len(view.history.lives), 'life', 'lives')}, "
            + count(len(view.history.launches), "command", "commands"),
        )
    )
    entries.append(
        (f"{g.useful_steps:,}", "useful steps", f"{g.replayed_steps:,} more were lost and made again")
    )
    if view.mean_recovery is not None:
        entries.append(
            (
                f"{view.mean_recovery:.2f} s",
                "mean recovery",
                f"of {len(g.recoveries)}, fault to next finished step",
            )
        )
    if g.useful_tokens_per_s:
        entries.append((f"{g.useful_tokens_per_s:,.0f}", "useful tokens/s", "while useful steps ran"))
    if g.mfu is not None:
        entries.append((percent(g.mfu), "MFU", "model FLOPs / peak, while useful steps ran"))
    return cards(entries)


def _split(view: RunView, svgs: Mapping[str, str]) -> str:
    shares = hundred([view.goodput.split[kind] for kind in KINDS])
    rows = [
        (
            f'<span class="swatch" style="background:{KIND_COLOUR[kind]}"></span>{kind}',
            seconds(view.goodput.split[kind]),
            f"{share / 100:.2f} %",
            MEANING[kind],
        )
        for kind, share in zip(KINDS, shares, strict=True)
    ]
    rows.append(("wall time", seconds(view.goodput.wall), f"{sum(shares) / 100:.2f} %", ""))
    bar = drawing("split", svgs["split"], CAPTIONS["split"])
    return bar + html_table(("", "time", "share", "meaning"), rows, text=("meaning",), raw_first=True)


def _faults(view: RunView) -> str:
    recoveries = view.goodput.recoveries
    if not recoveries:
        return "<p>No fault ended a life of this run.</p>"
    parts = ["detection", "teardown", "idle", "startup", "load", "step"]
    if not any(r.parts["idle"] for r in recoveries):
        parts.remove("idle")
    names = {"startup": "start-up", "step": "first step"}
    header = (
        "fault", "at step", "mended by", *(names.get(part, part) for part in parts), "recovery", "steps lost",
        "resumed after",
    )  # fmt: skip
    rows = [
        (
            r.cause if len(r.cause) < 60 else r.cause[:57] + "...",
            ", ".join(str(step) for _, _, step, _ in r.faults) or "-",
            r.by,
            *(part_of(r, part) for part in parts),
            seconds(r.total) if r.finished else "not yet",
            str(r.lost) if r.by != "none" else "-",
            "-" if r.resumed is None else f"{r.resumed} ({r.source or '?'})",
        )
        for r in recoveries
    ]
    note = (
        "Recovery: from the fault to the first step that finished after it. An injected fault begins when it fires, "
        "any other with the last thing that was finished before it."
    )
    by = ", ".join(f"{often} x {layer}" for layer, often in view.goodput.restarts.items()) or "none"
    return (
        html_table(header, rows, text=("mended by",))
        + f'<p class="note">{note} Restarts by layer: {escape(by)}.</p>'
    )


def _saves(view: RunView) -> str:
    rows = [
        (
            f"step {s.step}",
            s.mode,
            seconds(s.stalled * NS),
            seconds(s.written * NS) if s.written is not None else "-",
            format_size(s.bytes) if s.bytes is not None else "-",
            f"{format_size(s.bytes / s.written)}/s" if s.bytes and s.written else "-",
            f"{s.outcome}: {s.reason}" if s.reason else s.outcome,
        )
        for s in view.saves
    ]
    shown = (
        rows
        if len(rows) <= 60
        else [*rows[:30], (f"{len(rows) - 60} more in saves.csv", *[""] * 6), *rows[-30:]]
    )
    table = (
        html_table(
            ("save", "mode", "stall", "write", "size", "rate", "outcome"), shown, text=("mode", "outcome")
        )
        if rows
        else "<p>None.</p>"
    )
    snapshots = view.snapshots
    if snapshots.count:
        text = f"{snapshots.count:,} snapshots in memory a rank"
        if snapshots.timed:
            text += f"; training waited {seconds(snapshots.mean * NS)} for one without a save on average"
        text += "."
        table += f'<p class="note">{text}</p>'
    return table


def _data(view: RunView) -> str:
    files = [
        ("report.json", json.dumps(run_json(view), indent=1), "application/json"),
        ("steps.csv", steps_csv(view), "text/csv"),
        ("recoveries.csv", recoveries_csv(view), "text/csv"),
        ("saves.csv", saves_csv(view), "text/csv"),
    ]
    links = "".join(download(*file) for file in files if len(file[1]) <= MOST_EMBEDDED)
    facts = {"run": str(view.folder.resolve()), **view.versions}
    if view.ledger.unreadable:
        facts["ledger"] = f"{view.ledger.unreadable} lines torn or damaged, left out"
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<p class="files">{links}</p><dl>{listed}</dl>'


def _published() -> str:
    efficiency = [
        (f"{p.gpus} GPUs", f"{p.every} steps", percent(p.sync), percent(p.asynchronous)) for p in EFFICIENCY
    ]
    layers = [
        (PUBLISHED_NAME[p.layer], percent(p.training), percent(p.infra), f"{p.recovery:.0f} s")
        for p in LAYERS
    ]
    return (
        f'<p class="note">{escape(SOURCE)}. The write took about 275 s whatever the number of nodes.</p>'
        + html_table(("scale", "save every", "sync", "async"), efficiency)
        + "<br>"
        + html_table(("layer", "training goodput", "infra goodput", "recovery per fault"), layers)
    )
