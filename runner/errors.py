"""The exit codes of every program of the product, and the errors that end in one of them.

Standard library only: every room may import this file.
"""

from __future__ import annotations

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """What a process of `nvrx-run` exits with. docs/exit-codes.md says what to do about each.

    An orchestrator may retry `CRASHED` and the launcher's own failures; it must not retry the codes in
    `FINAL`, which a restart cannot mend.
    """

    DONE = 0
    CRASHED = 1  # an error nobody foresaw, a hang that was cut short, or a fault beyond the recovery layer
    BAD_RECIPE = 2  # the recipe, or something it names (data, model, folder), must be changed
    NO_LOADABLE_CHECKPOINT = 10  # checkpoints exist and none of them loads: nothing is overwritten
    RESTART_BUDGET_SPENT = 11
    NO_PROGRESS = 12  # the same failure at the same step, twice
    SAVE_FAILED = 13  # or storage that a start needs does not answer: mend it, then run the same command
    PREEMPTED = 14  # asked to stop, saved, stopped: run the same command to go on


FINAL = frozenset({ExitCode.BAD_RECIPE, ExitCode.NO_LOADABLE_CHECKPOINT, ExitCode.NO_PROGRESS})


class RunError(Exception):
    """An error with a sentence for the user and an exit code; shown without a traceback.

    Args:
        message: what is wrong, where, the value seen, and the remedy; one line.
        exit_code: what the process ends with.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CRASHED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PeerMissingError(RunError):
    """Another rank did not come to an agreement in time, which is that rank's fault and not that of who says so."""


class BusyError(RunError):
    """Something that the run asks is busy or away for a moment: the same again, later, may well succeed."""


class MonitorGoneError(RunError):
    """A rank's monitor is gone, which a launcher makes only once: no restart of its helps, the same command does.

    Args:
        rank: whose.

    Attributes:
        fault: what has happened, without the remedy.
    """

    def __init__(self, rank: int) -> None:
        self.fault = f"the monitor of rank {rank} is gone"
        super().__init__(f"{self.fault}, and ft_launcher makes no other; the same command resumes the run")


class InputError(RunError):
    """The recipe, or something that it names, is wrong and a retry cannot help (exit code 2)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.BAD_RECIPE)


def no_room(error: BaseException) -> bool:
    """Whether an error says that a disk, or the share of it that one may use, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def storage_error(error: OSError, path: object = None) -> RunError:
    """A file or folder that cannot be used, as one line: which, why, and for a full disk its own exit code.

    Args:
        error: what the operating system says; of a file that is open it does not say which.
        path: what it was about, where the error does not say.
    """
    about = error.filename if error.filename is not None else path
    where = f"{about}: " if about is not None else ""
    what = where + (error.strerror or str(error) or type(error).__name__)
    if no_room(error):
        return RunError(f"{what}; make room, then run the same command", ExitCode.SAVE_FAILED)
    return RunError(what)


def in_another_locale(error: UnicodeEncodeError) -> str:
    """A path that this process's locale cannot name, or that is no text at all, as one line with the remedy."""
    if error.encoding == "utf-8":  # every text has one: it is a byte of another encoding
        byte = ord(error.object[error.start]) & 0xFF
        return f"{error.object!a}: byte 0x{byte:02x} of this path is not UTF-8; rename that file or folder"
    return (
        f"{error.object!a}: the locale's {error.encoding} has no {error.object[error.start]!a}; "
        "use one of UTF-8, e.g. LC_ALL=C.UTF-8, or set PYTHONUTF8=1"
    )
