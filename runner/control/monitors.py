"""Which process watches a worker for NVRx's in-process restart. It may be killed, and nobody in the worker would know.

The worker names it, and takes that back before the monitor ends by itself. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_FOLDER = "monitors"  # in the control folder: a file a worker, which holds the process id of its monitor


def announce_monitor(control: Path, monitor: int) -> None:
    """Called by a worker: this process watches it from now on."""
    folder = control / _FOLDER
    with contextlib.suppress(OSError):  # no room: what becomes of it is not known
        folder.mkdir(exist_ok=True)
        draft = folder / f"{os.getpid()}.draft"
        draft.write_text(str(monitor))
        draft.replace(folder / str(os.getpid()))


def withdraw_monitor(control: Path) -> None:
    """Called by a worker: nothing watches it, and nothing has to."""
    with contextlib.suppress(OSError):
        (control / _FOLDER / str(os.getpid())).unlink(missing_ok=True)


def monitor_of(control: Path, worker: int) -> int | None:
    """The process that watches a worker; None where it has named none."""
    try:
        return int((control / _FOLDER / str(worker)).read_text())
    except FileNotFoundError:
        return None
