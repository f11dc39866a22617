"""Storage that says no is not a damaged checkpoint: it is asked again, within a bound, and then the run stops.

What is renamed on the word of an unwell file server, or of a node that has not mounted it, is lost to a run that would
go on from it a minute later. Standard library only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from runner.errors import ExitCode, RunError, no_room

PAUSES = (0.1, 0.3, 0.6, 1.0)  # seconds between the attempts
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EIO", "EREMOTEIO", "ESTALE", "ETIMEDOUT", "ENOTCONN", "ESHUTDOWN", "ECONNRESET", "ECONNREFUSED", "EHOSTDOWN",
        "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "EAGAIN", "EBUSY", "ENOLCK", "ENODEV", "ENXIO", "EMFILE", "ENFILE",
        "ENOMEM",
    )
)  # fmt: skip
_REMEDY = "nothing is set aside: mend the storage or mount it on that node, then run the same command"

T = TypeVar("T")


def may_pass(error: OSError) -> bool:
    """Whether the machines are at fault, and not what a recipe names (a folder without permission, a file)."""
    return error.errno in _PASSING


def patiently(
    attempt: Callable[[], T],
    path: Path,
    pause: Callable[[float], object],
    told: Callable[[OSError], object],
    again: Callable[[OSError], bool] = lambda error: True,
) -> T:
    """Call `attempt` until no OSError leaves it, at most 5 times within 2 s and what the calls take.

    Args:
        path: what is read; named by the error where the system call does not name it.
        pause: waits that many seconds.
        told: of each error that is followed by another attempt.
        again: whether an error is worth another attempt.

    Raises:
        OSError: the last one.
    """
    pauses = iter(PAUSES)
    while True:
        try:
            return attempt()
        except OSError as error:
            if error.filename is None:
                error.filename = str(path)
            seconds = next(pauses, None)
            if seconds is None or not again(error):
                raise
            told(error)
            pause(seconds)


def words(error: OSError) -> str:
    """Which node cannot read what, and why."""
    return f"({os.uname().nodename}) {what_cannot_be_read(error)}"


def what_cannot_be_read(error: OSError) -> str:
    """A file or folder, and why not."""
    return f"cannot read {error.filename}: {error.strerror or error}"


def unreadable(said: list[str]) -> RunError:
    """Ranks cannot read a checkpoint; `said` has a phrase of each. A restart within seconds would meet the same."""
    more = f" (and {len(said) - 1} more ranks)" if len(said) > 1 else ""
    return RunError(f"checkpoint.folder: {said[0]}{more}; {_REMEDY}", ExitCode.SAVE_FAILED)


def refused(error: OSError) -> RunError:
    """The folder of checkpoints itself cannot be used: the recipe's fault, or the storage's."""
    text = f"checkpoint.folder: {error.filename}: {error.strerror}"
    if no_room(error):
        return RunError(f"{text}; make room, then run the same command", ExitCode.SAVE_FAILED)
    if may_pass(error):
        return RunError(f"{text}; {_REMEDY}", ExitCode.SAVE_FAILED)
    return RunError(text, ExitCode.BAD_RECIPE)
