"""`nvrx-bench SUITE.yaml`: runs the cells of a suite one after the other, then reports on all of them."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from runner.arguments import Parser, a_path, working_folder
from runner.bench.cell import CellResult, Stopped, finished_before, run_cell
from runner.bench.suite import Cell, Suite, cells_of, load_suite, parse_override
from runner.errors import ExitCode, InputError, RunError
from runner.launch.signals import put_back
from runner.report.summary import seconds, table
from runner.streams import OutputLost, complain, write_out

_EPILOG = """
Each cell runs in a fresh folder; `nvrx-bench` called again goes on with those that are not done. The report, with the
figures where matplotlib is installed, goes to OUT/report.
"""


_ASK_TO_STOP = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
)  # the run has a session of its own, and hears none


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 where every cell was run to its end (or left out for want of GPUs), 1 where one was not."""
    arguments = _parser().parse_args(argv)
    # Under nohup one of them is ignored, and stays so.
    heard = [number for number in _ASK_TO_STOP if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, _stop) for number in heard}
    try:
        return _bench(arguments)
    except Stopped:
        complain("nvrx-bench: stopped; the same command goes on with the cells that are not done")
        return 128 + signal.SIGINT
    except RunError as error:
        for line in str(error).splitlines():
            complain(f"nvrx-bench: {line}")
        return int(error.exit_code)
    finally:
        put_back(former)


def _stop(number: int, frame: FrameType | None) -> None:
    for one in _ASK_TO_STOP:  # an impatient second Ctrl-C must not leave the run behind
        signal.signal(one, signal.SIG_IGN)
    raise Stopped


def _parser() -> Parser:
    parser = Parser("nvrx-bench", "Run a matrix of a recipe on this machine and report on it.", _EPILOG)
    parser.add_argument("suite", type=a_path, metavar="SUITE.yaml")
    parser.add_argument(
        "--out", type=a_path, help="folder of the results (default: bench/<name of the suite>)"
    )
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="only cells whose name matches, e.g. 'saves-*'"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="override a setting in every cell, e.g. training.steps=500; may be repeated")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the cells and their state, run nothing")
    return parser


def _bench(arguments: argparse.Namespace) -> int:
    working_folder()  # the cells' paths start there
    suite = load_suite(arguments.suite)
    out = arguments.out or Path("bench") / suite.name
    overrides = [parse_override(text) for text in arguments.overrides]
    cells = [
        c
        for c in cells_of(suite, arguments.suite, out, overrides)
        if fnmatch.fnmatchcase(c.name, arguments.only)
    ]
    if not cells:
        raise InputError(f"{arguments.suite}: no cell's name matches {arguments.only!r}; --list shows them")
    group_timeouts = _check(cells, out)
    gpus = gpu_count()
    if arguments.list:
        _list(cells, out, gpus)
        return ExitCode.DONE
    results = []
    for number, cell in enumerate(cells, start=1):
        result = _one(
            cell, suite, out / cell.name, gpus, group_timeouts[cell.name], f"[{number}/{len(cells)}]"
        )
        results.append(result)
    _report(results, out)
    return ExitCode.CRASHED if any(result.status == "failed" for result in results) else ExitCode.DONE


def _one(cell: Cell, suite: Suite, folder: Path, gpus: int, group_timeout: float, place: str) -> CellResult:
    if cell.needs_gpus > gpus:
        note = f"needs {cell.needs_gpus} GPUs, this machine has {gpus}"
        _say(f"{place} {cell.name}: left out: {note}")
        return CellResult(cell.name, "skipped", note=note)
    before = finished_before(folder, cell)
    if before is not None:
        _say(f"{place} {cell.name}: done before")
        return before
    _say(f"{place} {cell.name} ...")
    result = run_cell(cell, suite, folder, group_timeout=group_timeout, say=_say)
    note = f": {result.note}" if result.note else ""
    _say(f"{place} {cell.name}: {result.status} in {result.seconds:.1f} s{note}")
    return result


def _say(text: str) -> None:
    """A line of progress; the cells go on where nobody can read it, and the report has it all in the end."""
    try:
        write_out(text + "\n")
    except OutputLost as error:
        complain(f"nvrx-bench: {error}; the cells go on")


def _check(cells: Sequence[Cell], out: Path) -> dict[str, float]:
    """Check every cell's recipe before the first one runs; cell -> its process-group timeout, seconds."""
    from runner.recipe import render
    from runner.recipe.load import check_file

    timeouts: dict[str, float] = {}
    complaints: dict[object, list[str]] = {}  # what is wrong -> in which cells
    words: dict[object, str] = {}
    draft = out / ".check.yaml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        draft.touch()
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}; name another folder") from error
    try:
        for cell in cells:
            draft.write_text(cell.recipe, encoding="utf-8")
            loaded, problems = check_file(draft)
            if loaded is None:
                errors = [problem for problem in problems if problem.severity == "error"]
                wrong = tuple((error.code, error.path, error.message) for error in errors)
                complaints.setdefault(wrong, []).append(cell.name)
                words[wrong] = render.text(errors, color=False).replace(str(draft), "the cell's recipe")
            else:
                timeouts[cell.name] = loaded.recipe.recovery.process_group_timeout.total_seconds()
    finally:
        draft.unlink(missing_ok=True)
    if complaints:
        cell_names = {wrong: names[0] + _others(len(names) - 1) for wrong, names in complaints.items()}
        raise InputError("\n".join(f"cell {cell_names[wrong]}:\n{words[wrong]}" for wrong in complaints))
    return timeouts


def _others(count: int) -> str:
    return f" and {count} other{'s' if count > 1 else ''}" if count else ""


def gpu_count() -> int:
    """GPUs of this machine, as its driver counts them."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0


def _list(cells: Sequence[Cell], out: Path, gpus: int) -> None:
    rows = []
    for cell in cells:
        done = finished_before(out / cell.name, cell)
        state = (
            "done"
            if done
            else "to run"
            if cell.needs_gpus <= gpus
            else f"left out: needs {cell.needs_gpus} GPUs"
        )
        rows.append((cell.name, state))
    write_out(table(("cell", "state"), rows) + "\n")


def _report(results: Sequence[CellResult], out: Path) -> None:
    from runner.report.cli import side_by_side, write_report
    from runner.report.view import view_run

    cells = table(("cell", "status", "commands", "time"), [
        (r.name, r.status, str(len(r.exit_codes)), seconds(r.seconds * 1e9)) for r in results
    ])  # fmt: skip
    _say(f"\n{cells}")
    views = [view_run(out / result.name / "run") for result in results if result.status == "done"]
    if not views:
        return
    _say(f"\n{side_by_side(views)}")
    if find_spec("matplotlib") is None:
        _say("\nthe page and figures need matplotlib: pip install 'nvrx-run[report]'")
        return
    for view in views:
        write_report([view], out / "report" / view.name)
    page = write_report(views, out / "report", pages=[f"{view.name}/index.html" for view in views])
    _say(f"\nreport: {page}")


if __name__ == "__main__":
    sys.exit(main())
