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
from typing import BinaryIO

from runner.arguments import Parser, a_path, working_folder
from runner.bench.cell import LEFT_OUT, CellResult, Stopped, failed_before, finished_before, run_cell
from runner.bench.matrix import Cell, cells_of
from runner.bench.suite import OWN, Suite, load_suite
from runner.errors import ExitCode, InputError, RunError, in_another_locale, no_room, storage_error
from runner.launch.signals import put_back
from runner.recipe import render
from runner.recipe.installed import require_training
from runner.recipe.problems import Problem
from runner.recipe.words import close_matches
from runner.report.summary import seconds, table
from runner.streams import OutputLost, complain, go_on_unread, write_out
from runner.system.lock import Held, take_lock

_EPILOG = """
Each cell runs in a fresh folder; `nvrx-bench` called again goes on with those that are not done. The report, with the
figures where matplotlib is installed, goes to OUT/report.
"""


_PATIENCE = 0.0  # seconds for another command to leave the folder
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
    except UnicodeEncodeError as error:  # of a path: texts are written as UTF-8
        complain(f"nvrx-bench: {in_another_locale(error)}")
        return int(ExitCode.BAD_RECIPE)
    except OSError as error:  # of the results' folder, while cells run
        failure = storage_error(error, arguments.out or "bench")
        complain(f"nvrx-bench: {failure}")
        return int(failure.exit_code)
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
    file = load_suite(arguments.suite)
    out = arguments.out or Path("bench") / file.suite.name
    every = cells_of(file, out, arguments.overrides)
    cells = [cell for cell in every if fnmatch.fnmatchcase(cell.name, arguments.only)]
    if not cells:
        raise InputError(f"{arguments.suite}: no cell's name matches {arguments.only!r}; --list shows them")
    group_timeouts, doubts = _check(cells)
    gpus = gpu_count()
    if arguments.list:
        _list(cells, out, gpus)
        for problem, names in doubts.items():
            write_out(f"\ncell {names[0]}{_others(len(names) - 1)}:\n{render.text([problem])}\n")
        return ExitCode.DONE
    require_training()  # else each cell would find out by itself, time and again
    with _alone(out):
        results = [
            _one(
                cell, file.suite, out / cell.name, gpus, group_timeouts[cell.name], f"[{number}/{len(cells)}]"
            )
            for number, cell in enumerate(cells, start=1)
        ]
        _report(results, out)
    return ExitCode.CRASHED if any(result.status == "failed" for result in results) else ExitCode.DONE


def _alone(out: Path) -> BinaryIO:
    """The folder of the results, for this command alone: another one would remove cells that are being run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return take_lock(out / ".lock", _PATIENCE)
    except Held as held:
        raise InputError(
            f"--out: {out} is in use by another nvrx-bench ({held.holder}); wait for it, or name another folder"
        ) from held
    except OSError as error:
        if no_room(error):
            raise storage_error(error, out) from error
        raise InputError(f"--out: {out} cannot be written: {error.strerror}; name another folder") from error


def _one(cell: Cell, suite: Suite, folder: Path, gpus: int, group_timeout: float, place: str) -> CellResult:
    if cell.needs_gpus > gpus:
        note = f"needs {cell.needs_gpus} GPUs, this machine has {gpus}"
        _say(f"{place} {cell.name}: {LEFT_OUT}: {note}")
        return CellResult(cell.name, LEFT_OUT, note=note)
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
        go_on_unread()


def _check(cells: Sequence[Cell]) -> tuple[dict[str, float], dict[Problem, list[str]]]:
    """Check every cell's recipe before the first one runs.

    Returns:
        Cell -> its process-group timeout, seconds; warnings, each with the cells that it is about.

    Raises:
        InputError: a recipe is wrong.
    """
    from runner.recipe.load import check_tree

    timeouts: dict[str, float] = {}
    wrong: dict[Problem, list[str]] = {}  # in which cells
    doubts: dict[Problem, list[str]] = {}
    for cell in cells:
        assert cell.tree is not None
        loaded, problems = check_tree(Path(cell.name), cell.tree, cell.found)
        for problem in problems:
            if (
                problem.code == "R606" and cell.restart == "kubernetes"
            ):  # which survives by starting the job again
                continue
            of_its_kind = wrong if problem.severity == "error" else doubts
            of_its_kind.setdefault(_meant(problem)._replace(involved=()), []).append(cell.name)
        if loaded is not None:
            timeouts[cell.name] = loaded.recipe.recovery.process_group_timeout.total_seconds()
    if wrong:
        raise InputError("\n".join(
            f"cell {names[0]}{_others(len(names) - 1)}:\n{render.text([problem])}" for problem, names in wrong.items()
        ))  # fmt: skip
    return timeouts, doubts


def _meant(problem: Problem) -> Problem:
    """A key of the suite's own that is misspelt, or at a wrong place, is taken for a section of the recipe."""
    if problem.code != "T201" or "." in problem.path:
        return problem
    if problem.path in OWN:
        return problem._replace(hint="it belongs under a value of an axis", expected=None)
    near = close_matches(problem.path, OWN)
    return problem._replace(hint=f"did you mean `{near[0]}`?") if near else problem


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
        if finished_before(out / cell.name, cell):
            state = "done"
        elif cell.needs_gpus > gpus:
            state = f"{LEFT_OUT}: needs {cell.needs_gpus} GPUs"
        else:
            failed = failed_before(out / cell.name, cell).partition(":")[0]
            state = "to run" + (f" again ({failed})" if failed else "")
        rows.append((cell.name, state))
    write_out(table(("cell", "state"), rows) + "\n")


def _report(results: Sequence[CellResult], out: Path) -> None:
    from runner.report.cli import side_by_side, write_report
    from runner.report.view import NO_MATPLOTLIB, view_run

    cells = table(("cell", "status", "commands", "time"), [
        (r.name, r.status, str(len(r.exit_codes)), seconds(r.seconds * 1e9)) for r in results
    ])  # fmt: skip
    _say(f"\n{cells}")
    views = [view_run(out / result.name / "run") for result in results if result.status == "done"]
    if not views:
        return
    _say(f"\n{side_by_side(views)}")
    if find_spec("matplotlib") is None:
        _say(f"\n{NO_MATPLOTLIB}")
        return
    for view in views:
        write_report([view], out / "report" / view.name)
    pages = [f"{view.name}/index.html" for view in views]
    missing = [
        (r.name, f"{r.status}: {r.note}" if r.note else r.status) for r in results if r.status != "done"
    ]
    page = write_report(views, out / "report", pages=pages, missing=missing)
    _say(f"\nreport: {page}")


if __name__ == "__main__":
    sys.exit(main())
