"""Standard output and error of every command: a reader that leaves, a full disk, streams that are closed.

What a command prints is written through before it goes on, so that nothing is left to fail when Python ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from runner.errors import RunError


class OutputLost(RunError):
    """Standard output does not take what a command was asked to print (exit code 1)."""


def open_missing() -> None:
    """Give standard streams that are closed a place: the next file that is opened would take theirs, and whoever
    inherits it would write into that file."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def go_on_unread() -> None:
    """For what runs to its end whether or not anybody reads: closed streams take what is printed, and lose it."""
    open_missing()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the rest of this process


def write_out(text: str) -> None:
    """Print a text as it is.

    A reader that has seen enough (`| head`) is no error: what else is printed goes nowhere, and the command goes on.

    Raises:
        OutputLost: it cannot be written, e.g. the disk is full.
    """
    try:
        if sys.stdout is None:  # closed by whoever started this process
            raise OutputLost("standard output is closed; open it, e.g. with >/dev/null")
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from None
    except UnicodeEncodeError as error:
        message = f"standard output takes {error.encoding} only, which has no {error.object[error.start]!a}"
        raise OutputLost(f"{message}; set PYTHONIOENCODING=utf-8") from None


def complain(text: str) -> None:
    """Print a line to standard error; where nobody can be told, the exit code has to do."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def interrupted(program: str) -> int:
    """Ctrl-C while nothing else answers it: a line, and the exit code that shells know."""
    complain(f"{program}: interrupted")
    return 128 + signal.SIGINT


def fit_for_output(text: str) -> str:
    """A text with what standard output's encoding lacks escaped: no character in a log is worth a run."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def discard_output() -> None:
    """From now on, what is printed goes nowhere: what is left in Python's buffer fails no second time."""
    with contextlib.suppress(OSError, ValueError):  # not backed by a file: nothing is flushed at the end
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout.flush()
