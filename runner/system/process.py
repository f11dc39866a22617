"""Facts about processes from /proc. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_PF_EXITING = 0x4  # in field 9 of /proc/PID/stat, since Linux 2.6

LONGEST_KILL = 15.0  # seconds until what was killed has ended, unless the kernel does not let it go

DATA_WORKER = "nvrx-data"  # name of the processes that load data ahead for a rank


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; at once where it is gone already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (sub-reaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_this_process(name: str) -> None:
    """Set the name that `ps` and `top` show for this process; the kernel keeps 15 characters."""
    _prctl(_PR_SET_NAME, name.encode())


def process_name(pid: int) -> str:
    """The name that a process has; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on, or nothing where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(
            encoding="utf-8", errors="replace"
        )  # a name may hold any byte
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def state_of(pid: int) -> str:
    """The state letter of a process; empty where there is no such process."""
    fields = stat_fields(pid)
    return fields[0] if fields else ""


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return state_of(pid) not in ("", "Z", "X")


def failing_with(pid: int) -> int | None:
    """What a process fails with that is about to be gone: the kernel may still clear up behind it.

    Behind a process that has used a GPU its driver clears up for half a second, and only then can a parent wait for it.

    Returns:
        Its exit code, negative for a signal; None where it goes on, ends with 0, or the kernel does not say.
    """
    fields = stat_fields(pid)
    if fields is None or not (fields[0] in "ZX" or int(fields[6]) & _PF_EXITING):
        return None
    with contextlib.suppress(
        IndexError, ValueError
    ):  # not every system call filter or sandbox tells the status
        return os.waitstatus_to_exitcode(int(fields[49])) or None
    return None


def started_at(pid: int) -> float:
    """Wall clock at which a process was created.

    Raises:
        ProcessLookupError: there is no such process.
    """
    fields = stat_fields(pid)
    if fields is None:
        raise ProcessLookupError(f"no process {pid}")
    ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks)


def children_by_parent() -> dict[int, list[int]]:
    """Parent -> children, for all processes that can be seen."""
    table: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are what is wanted
        if name.isdigit() and (fields := stat_fields(int(name))) is not None:
            table.setdefault(int(fields[1]), []).append(int(name))
    return table


def descendants(pid: int) -> list[int]:
    """All processes below a process, parents before children."""
    table = children_by_parent()
    found = [pid]
    for parent in found:
        found.extend(table.get(parent, ()))
    return found[1:]
