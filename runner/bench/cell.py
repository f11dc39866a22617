"""Runs one cell of a suite in a folder of its own, and remembers how that went.

<out>/<cell>/recipe.yaml   the recipe of the cell; `nvrx-run` takes it by itself, too
             run/          the run's folder
             log.txt       what the run printed
             cell.json     how it went; written when the cell is done
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runner.bench.kubelet import next_backoff, peers_end_at
from runner.bench.matrix import Cell
from runner.bench.suite import Suite
from runner.errors import FINAL, InputError
from runner.ledger.finish import close_run
from runner.report.view import LABEL_FILE, read_label
from runner.streams import complain
from runner.system.process import LONGEST_KILL, die_with_parent

GRACE = 60.0
"""Seconds that a run gets to stop by itself before it is killed."""
_NEXT_SIGNAL = 1.0  # seconds
_LONGEST_REASON = 500  # characters
_MEASURED = "nvrx-bench has measured it as a cell of a suite"
_PARTIAL = LABEL_FILE + ".partial"
LEFT_OUT = "left out"  # for want of GPUs; in the list, in the progress and in the report


@dataclass
class CellResult:
    """How a cell went.

    Attributes:
        status: `done`: the run ended with exit code 0; `failed`; or `LEFT_OUT`.
        exit_codes: of its commands, in order.
        seconds: of all of them, waits between them included.
    """

    name: str
    status: str
    exit_codes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""


class Stopped(Exception):
    """The user asked to stop."""


def run_cell(
    cell: Cell,
    suite: Suite,
    folder: Path,
    *,
    group_timeout: float,
    say: Callable[[str], None],
    command: Callable[[Path], list[str]] | None = None,
) -> CellResult:
    """Run a cell in `folder`, which is made anew.

    Args:
        group_timeout: the recipe's process-group timeout, seconds.
        say: where progress goes.
        command: recipe -> what runs it; `nvrx-run` by default.

    Raises:
        InputError: the folder holds something that no suite wrote.
        Stopped: SIGINT or SIGTERM came; the cell is not done.
    """
    make_anew(folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(cell.recipe, encoding="utf-8")
    argv = (command or nvrx_run)(recipe)
    result = CellResult(cell.name, "failed")
    begun = time.monotonic()
    deadline = begun + suite.timeout.total_seconds()
    backoff: float | None = None
    with (folder / "log.txt").open("ab") as log:
        while True:
            started, before = time.monotonic(), log.tell()
            code = _run(argv, log, deadline)
            ran = time.monotonic() - started
            result.exit_codes.append(-1 if code is None else code)
            if code is None:
                result.note = f"stopped after {suite.timeout.total_seconds():g} s (the suite's timeout)"
                break
            if code == 0:
                result.status = "done"
                break
            if cell.restart == "never" or code in FINAL:
                result.note = (
                    f"exit code {code}{_reason(folder / 'log.txt', before)}; see {folder / 'log.txt'}"
                )
                break
            if len(result.exit_codes) > suite.max_restarts:
                result.note = f"{suite.max_restarts} restarts are spent"
                break
            backoff = next_backoff(backoff, ran)
            wait = max(0.0, peers_end_at(folder / "run", group_timeout) - time.time()) + backoff
            say(
                f"  exit code {code}; back-off {backoff:.0f} s after the peers' timeout: starts again in {wait:.0f} s"
            )
            if time.monotonic() + wait > deadline:
                result.note = (
                    f"the next restart would exceed {suite.timeout.total_seconds():g} s (the suite's timeout)"
                )
                break
            _sleep(wait)
    result.seconds = time.monotonic() - begun
    if result.status == "done":
        kept = suite.keep_checkpoints
        # Closed first: what is removed must not be missed by a run by hand, whose attempt would count as the cell's.
        close_run(folder / "run", _MEASURED if kept else f"{_MEASURED}, and its checkpoints are not kept")
        if not kept:
            shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    save_result(folder, cell, result, argv)
    return result


def _reason(log: Path, start: int) -> str:
    """What the command said why it ended, from `start` bytes on; nothing where it did not."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line for line in file if line.startswith(b"nvrx-run: ")]
    said = [line for line in lines if not line.startswith(b"nvrx-run: details in ")]
    if not said:
        return ""
    words = said[-1].decode("utf-8", "replace").removeprefix("nvrx-run").strip()
    return words if len(words) <= _LONGEST_REASON else words[:_LONGEST_REASON] + " ..."


def nvrx_run(recipe: Path) -> list[str]:
    """The command of a cell."""
    script = Path(sys.executable).with_name("nvrx-run")
    if not script.is_file():
        raise InputError(
            f"{script} is not there; nvrx-bench must run from the environment that nvrx-run is in"
        )
    return [str(script), str(recipe.resolve())]


def make_anew(folder: Path) -> None:
    """An empty folder; what an earlier attempt at the cell left is removed.

    Raises:
        InputError: the folder holds something else.
    """
    if folder.exists():
        if not folder.is_dir():
            raise InputError(
                f"{folder}: is no folder, and the cell needs one; move it, or choose another --out"
            )
        own = {"recipe.yaml", "run", "log.txt", LABEL_FILE, _PARTIAL}
        strange = sorted({path.name for path in folder.iterdir()} - own)
        if strange:
            raise InputError(
                f"{folder}: holds {', '.join(strange)}, which is no cell's; move it, or choose another --out"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def save_result(folder: Path, cell: Cell, result: CellResult, argv: list[str]) -> None:
    """Write `cell.json`: the mark that the cell is done, and what the report calls it."""
    data: dict[str, Any] = {
        "name": cell.name,
        "experiment": cell.experiment,
        "baseline": "kubernetes" if cell.restart == "kubernetes" else None,
        "status": result.status,
        "exit_codes": result.exit_codes,
        "seconds": round(result.seconds, 3),
        "note": result.note,
        "command": argv,
        "recipe": cell.recipe,
    }
    partial = folder / _PARTIAL
    partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / LABEL_FILE)


def finished_before(folder: Path, cell: Cell) -> CellResult | None:
    """The result of a cell that an earlier call ran to its end with the same recipe; None where it must run (again)."""
    data = read_label(folder / LABEL_FILE)
    if data.get("status") != "done" or data.get("recipe") != cell.recipe:
        return None
    codes, spent = data.get("exit_codes"), data.get("seconds")
    if not (
        isinstance(codes, list) and isinstance(spent, int | float) and (folder / "run" / "ledger").is_dir()
    ):
        return None  # the file is damaged, or the run is gone
    return CellResult(cell.name, "done", codes, spent, "ran before")


def failed_before(folder: Path, cell: Cell) -> str:
    """Why an earlier call could not run the cell to its end; nothing where it did, or there was none."""
    data = read_label(folder / LABEL_FILE)
    failed = data.get("status") == "failed" and data.get("recipe") == cell.recipe
    return str(data.get("note") or "failed") if failed else ""


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.5, max(0.0, end - time.monotonic())))


def _run(argv: list[str], log: Any, deadline: float) -> int | None:
    """The exit code; None where the deadline came first. The run has a session of its own and is never left behind.

    Nor is it where this process is killed: the next one would remove the folder of a run that goes on.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run: SIGTERM to `nvrx-run`, which ends what it started; after a grace, SIGKILL to its session's group.

    Its cell starts anew: a second SIGTERM spares it the save that the first one asks for, which a rank that hangs would
    not even get to.
    """
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_NEXT_SIGNAL)
            return
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(LONGEST_KILL)
    except subprocess.TimeoutExpired:
        complain(f"nvrx-bench: process {process.pid} was killed and does not end: storage hangs?")
