"""What a supervisor prints: lines on what it does, how the run ended, the summary, and with --verbose all the rest."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.errors import ExitCode, RunError
from runner.launch.watch.verdict import Verdict
from runner.streams import complain, fit_for_output


def say(line: str) -> None:
    """A line for the user, on standard error."""
    complain(f"nvrx-run: {line}")


def print_verdict(verdict: Verdict, log: Path, *, verbose: bool) -> None:
    """How a launch ended, where the run is not done by it.

    Args:
        verdict: on the launch.
        log: what the launcher printed.
        verbose: show the traceback.
    """
    if verdict.exit_code == ExitCode.DONE:
        return
    if verbose and verdict.traceback:
        complain(verdict.traceback)
    say(verdict.message)
    # Only what nobody foresaw needs more than the sentence above.
    if not verbose and verdict.exit_code == ExitCode.CRASHED:
        say(f"details in {log} (or --verbose)")


def print_summary(run_folder: Path) -> None:
    """The table of a run, on standard output; where it cannot be made or written, a line says so."""
    from runner.report.summary import render

    try:
        text = render(run_folder)
    except (RunError, OSError) as error:  # a lost ledger takes nothing from the run
        say(f"there is no summary: {error}")
        return
    try:
        print(fit_for_output(f"\n{text}"), flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        sys.stdout = None  # nothing is left in it to fail once more at the end
        say(f"the summary cannot be written: {error.strerror}")


def follow(path: Path) -> Callable[[], None]:
    """Copies what is new in a file to standard error, at each call."""

    def lines() -> Iterator[None]:
        with path.open("rb") as file:
            while True:
                new = file.read()
                with contextlib.suppress(OSError):  # nobody reads it any more; the file has it
                    if sys.stderr is not None:
                        sys.stderr.buffer.write(new)
                        sys.stderr.buffer.flush()
                yield

    reader = lines()
    return lambda: next(reader)
