"""Names of the files in shared memory, for the ranks that make them and the supervisor that removes leftovers.

Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
from pathlib import Path

from runner.control.channel import RUN_ID

SHARED_MEMORY = Path("/dev/shm")


def _clean(run_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)


def current_run_id(default: str) -> str:
    """The run id that the supervisor exported, else `default`."""
    return os.environ.get(RUN_ID) or default


def arena_path(run_id: str, rank: int) -> Path:
    """The staging arena of one rank on this node."""
    return SHARED_MEMORY / f"nvrx-{_clean(run_id)}-arena-{rank}"


def name_semaphores(run_id: str) -> None:
    """Have this process and its children name their semaphores after the run.

    Queues to a spawned process use named semaphores, which stay in shared memory where the process and its resource
    tracker are killed; under a name of ours they can be told from everybody else's.
    """
    multiprocessing.current_process()._config["semprefix"] = f"/nvrx-{_clean(run_id)}"  # type: ignore[attr-defined]


def remove_leftovers(run_id: str, *, before: float = math.inf) -> list[Path]:
    """Remove what ranks of this run left in shared memory on this node.

    Args:
        run_id: of the run.
        before: what was written to since stays; Unix time.

    Returns:
        what was removed.
    """
    name = re.escape(_clean(run_id))
    ours = re.compile(rf"nvrx-{name}-arena-\d+|sem\.nvrx-{name}-\w+")
    removed: list[Path] = []
    if not SHARED_MEMORY.is_dir():
        return removed
    for path in SHARED_MEMORY.iterdir():
        if not ours.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # somebody else removes it; another user's
            if path.stat().st_mtime < before:
                path.unlink()
                removed.append(path)
    return removed
