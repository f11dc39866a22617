"""`nvrx-report RUN...`: the account of one run, or several side by side; while they go on, too."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from runner.arguments import Parser, a_path
from runner.errors import ExitCode, InputError, RunError, storage_error
from runner.report.summary import percent, render_ledger, seconds, table
from runner.report.tables import recoveries_csv, run_json, saves_csv, steps_csv, table_csv
from runner.report.view import NO_MATPLOTLIB, RunView, view_run
from runner.streams import complain, write_out

_LONGEST_INTERVAL = 86_400
_PARTIAL = ".partial"
_EPILOG = """
one run:      nvrx-report runs/quickstart
several:      nvrx-report runs/a runs/b --out comparison
going on:     nvrx-report runs/a --watch 30
for a script: nvrx-report runs/a --json

The page (index.html in the output folder) needs matplotlib: pip install matplotlib.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code (0, or 2 where a run cannot be read)."""
    arguments = _parser().parse_args(argv)
    try:
        while True:
            _report(arguments)
            if arguments.watch is None:
                return ExitCode.DONE
            time.sleep(arguments.watch)
    except RunError as error:
        complain(f"nvrx-report: {error}")
        return error.exit_code
    except OSError as error:  # of a ledger
        failure = storage_error(error)
        complain(f"nvrx-report: {failure}")
        return failure.exit_code
    except KeyboardInterrupt:
        return ExitCode.DONE


def _parser() -> Parser:
    parser = Parser(
        "nvrx-report", "What runs achieved and what their faults cost, from their ledgers.", _EPILOG
    )
    parser.add_argument("runs", nargs="+", type=a_path, metavar="RUN", help="folder of a run")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--out", type=a_path, metavar="FOLDER",
        help="where the page, figures and tables go (default: RUN/report; of several runs: ./report)",
    )  # fmt: skip
    instead.add_argument("--text", action="store_true", help="print the summary and write nothing")
    instead.add_argument("--json", action="store_true", help="print the account as JSON and write nothing")
    instead.add_argument(
        "--costs", type=a_path, metavar="FILE",
        help="write the costs of these runs, one a layer, for python -m runner.report.scale",
    )  # fmt: skip
    parser.add_argument(
        "--watch", type=_interval, metavar="SECONDS", help="do it again every so often, until Ctrl-C"
    )
    return parser


def _interval(text: str) -> float:
    """Seconds between two reports. What is no number compares as false."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_INTERVAL:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of seconds above 0, at most {_LONGEST_INTERVAL}"
        )
    return value


def _report(arguments: argparse.Namespace) -> None:
    _refuse_repeats(arguments.runs)
    views = _told_apart([view_run(folder) for folder in arguments.runs])
    if arguments.costs is not None:
        with _writing("--costs", arguments.costs):
            _replace(arguments.costs, costs_json(views).encode())
        write_out(f"costs: {arguments.costs}\n")
        return
    if arguments.json:
        data = [run_json(view) for view in views]
        write_out(json.dumps(data[0] if len(data) == 1 else data, indent=1) + "\n")
        return
    if len(views) == 1:
        write_out(render_ledger(views[0].ledger, (views[0].goodput, views[0].history)) + "\n")
    else:
        write_out(side_by_side(views) + "\n")
    if arguments.text:
        return
    if find_spec("matplotlib") is None:
        if arguments.out is not None:
            raise InputError(NO_MATPLOTLIB)
        write_out(f"\n{NO_MATPLOTLIB}\n")
        return
    out = arguments.out or (views[0].folder / "report" if len(views) == 1 else Path("report"))
    refresh = max(1, round(arguments.watch)) if arguments.watch else 0
    with _writing("--out", out):
        page = write_report(views, out, refresh=refresh)
    write_out(f"\nreport: {page}\n")


def _refuse_repeats(folders: Sequence[Path]) -> None:
    """A run beside itself compares nothing.

    Raises:
        InputError: a folder is named twice, in whatever words.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        first = seen.setdefault(folder.resolve(), folder)
        if first is not folder:
            same = f"{folder} is given twice" if first == folder else f"{first} and {folder} are one folder"
            raise InputError(f"{same}; name each run once")


def _told_apart(views: list[RunView]) -> list[RunView]:
    """Runs of one name are called by their folders."""
    names = [view.name for view in views]
    return [
        dataclasses.replace(view, name=str(view.folder)) if names.count(view.name) > 1 else view
        for view in views
    ]


@contextmanager
def _writing(option: str, path: Path) -> Iterator[None]:
    """Turn what the file system says about `path` into one line.

    Raises:
        InputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        place = path if str(error.filename).endswith(_PARTIAL) else error.filename or path
        raise InputError(
            f"{option}: {place} cannot be written: {error.strerror}; name another place"
        ) from error


def costs_json(views: Sequence[RunView]) -> str:
    """The costs file of runs: one entry a layer. A layer that cannot mend hard faults pays the baseline's price."""
    from runner.report.advice import measured_costs, restores_from_memory

    layers: dict[str, dict[str, object]] = {}
    for view in views:
        costs = measured_costs(view)
        if costs is None:
            raise InputError(
                f"{view.folder}: has no finished step or no save to measure costs of; leave it out, or run it on"
            )
        if view.layer in layers:  # one of the two would vanish
            other = next(run.folder for run in views if run.layer == view.layer)
            raise InputError(
                f"--costs: {other} and {view.folder} both ran under {view.layer}; name one run a layer"
            )
        layers[view.layer] = {
            "save": costs.save,
            "write": costs.write,
            "snapshot": costs.snapshot,
            "soft_recovery": costs.soft_recovery,
            "hard_recovery": costs.hard_recovery,
            "memory": restores_from_memory(view),
            "ranks": view.world,
        }
    if "inprocess" in layers and "kubernetes" in layers:
        layers["inprocess"]["hard_recovery"] = layers["kubernetes"]["hard_recovery"]
    steps = [view.step_seconds for view in views if view.step_seconds is not None]
    measured = ", ".join(f"{view.name} ({view.world} ranks)" for view in views)
    return json.dumps({"measured": measured, "step": min(steps), "layers": layers}, indent=1) + "\n"


def side_by_side(views: Sequence[RunView]) -> str:
    """The comparison as text."""
    rows = [
        (
            view.name,
            "none, Kubernetes (imitated)" if view.layer == "kubernetes" else view.layer,
            view.mode,
            str(view.every or "-"),
            str(view.goodput.useful_steps),
            str(len(view.goodput.recoveries)),
            percent(view.goodput.training),
            percent(view.goodput.infra),
            percent(view.goodput.efficiency) if view.goodput.efficiency is not None else "-",
            f"{view.mean_recovery:.2f} s" if view.mean_recovery is not None else "-",
            seconds(view.goodput.wall),
        )
        for view in views
    ]
    header = (
        "run",
        "layer",
        "saves",
        "every",
        "steps",
        "faults",
        "training",
        "infra",
        "efficiency",
        "recovery",
        "wall",
    )
    return table(header, rows)


def write_report(
    views: Sequence[RunView],
    out: Path,
    *,
    refresh: int = 0,
    pages: Sequence[str] | None = None,
    missing: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write page, figures (SVG, PNG) and tables (CSV, JSON) to `out`; returns the page's path. Needs matplotlib.

    Args:
        refresh: seconds after which a browser loads a run's page again; 0: never.
        pages: of several runs, the address of each one's own page, relative to `out`.
        missing: runs that belong beside these, by name, and why they are not here.
    """
    from runner.report.compare import COLUMNS, comparison_figures, comparison_rows
    from runner.report.figures import figures_of
    from runner.report.page import comparison_page, run_page
    from runner.report.palette import as_png, as_svg

    (out / "figures").mkdir(parents=True, exist_ok=True)
    single = len(views) == 1
    figures = figures_of(views[0]) if single else comparison_figures(views)
    svgs = {name: as_svg(figure) for name, figure in figures.items()}
    for name, figure in figures.items():
        _replace(out / "figures" / f"{name}.svg", _as_utf8(svgs[name]))
        _replace(out / "figures" / f"{name}.png", as_png(figure))
    now = datetime.now(timezone.utc)
    if single:
        view = views[0]
        files = {
            "report.json": json.dumps(run_json(view), indent=1),
            "steps.csv": steps_csv(view),
            "recoveries.csv": recoveries_csv(view),
            "saves.csv": saves_csv(view),
            "index.html": run_page(view, svgs, now=now, refresh=refresh, missing=missing),
        }
    else:
        rows = comparison_rows(views)
        files = {
            "comparison.json": json.dumps([run_json(view) for view in views], indent=1),
            "comparison.csv": table_csv(COLUMNS, rows),
            "index.html": comparison_page(views, svgs, now=now, pages=pages, missing=missing),
        }
    for name, text in files.items():
        _replace(out / name, _as_utf8(text))
    return out / "index.html"


def _as_utf8(text: str) -> bytes:
    """A folder's name may hold bytes that are no text: they are shown as escapes."""
    return text.encode("utf-8", "backslashreplace")


def _replace(path: Path, data: bytes) -> None:
    """Whoever has the page open while the run goes on never reads half of it, nor does a second report disturb it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # of a full disk, say
        raise


if __name__ == "__main__":
    sys.exit(main())
