"""The end of a worker that has said what it ended with, and what that end is worth.

A rank is done when the last step is committed and its own last event is written. What it still does then changes
nothing in the run: it leaves its peers, stops its writer process, runs the hooks of libraries at exit. A rank that
hangs or crashes in that has ended well all the same; else a launcher that starts workers again would do so over and
over. So it leaves a mark, from which the fork server and the supervisor know. Supervisors of other nodes, where no rank
may be left that waits for one that is still there, are told in the run's folder. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runner.control.outcome import outcome_folder

# Parts of a worker's life as `Presence` tells them, like those of its start-up.
END = "end"  # of a rank for which the run is done
LEAVING = "leaving"  # of a rank for which it is not, and which has said why

PARTING = 300.0  # seconds that the last to be done waits for the others to see the last save committed

_DONE = "done"  # folder in the control folder: an empty file for each worker that is done


def mark_done(control: Path) -> None:
    """Called by a worker: whatever becomes of this process from now on is no fault of the run."""
    folder = control / _DONE
    with contextlib.suppress(OSError):  # no room: how it ends counts, as for any process
        folder.mkdir(exist_ok=True)
        (folder / str(os.getpid())).touch()


def is_done(control: Path, pid: int) -> bool:
    """Whether a worker is done, or was when it ended."""
    return (control / _DONE / str(pid)).exists()


def tell_other_nodes(run_folder: Path, start: str) -> None:
    """Called by a supervisor: the run is done on a rank of its node.

    Args:
        run_folder: of the run.
        start: of the workers, as `signs.start_of` names it.

    Raises:
        OSError: it cannot be written down.
    """
    _told(run_folder, start).touch()


def is_done_elsewhere(run_folder: Path, start: str) -> bool:
    """Whether a supervisor has said that of this start."""
    return _told(run_folder, start).exists()


def _told(run_folder: Path, start: str) -> Path:
    return outcome_folder(run_folder) / f".done-{start}"


def forget(control: Path, pid: int) -> None:
    """A process begins that has this number: what is there is of one that had it before."""
    with contextlib.suppress(OSError):
        (control / _DONE / str(pid)).unlink(missing_ok=True)
