"""The processes below a supervisor: starting them, and seeing to it that none outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from runner.control.channel import WORKER
from runner.errors import RunError
from runner.system.process import children_by_parent, descendants, die_with_parent

_POLL = 0.02
_TRACKER_PATIENCE = 3.0  # seconds


def start(
    argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes], *, folder: Path
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, which dies with this process.

    A session of its own keeps the terminal's Ctrl-C with the supervisor, which decides what the workers get to know.

    Raises:
        RunError: the program cannot be started.
    """
    parent = os.getpid()

    def in_child() -> None:
        die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)

    try:
        return subprocess.Popen(
            list(argv),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_child,
        )
    except OSError as error:
        raise RunError(
            f"{argv[0]}: cannot be started: {error.strerror}; is `nvrx-run[train]` installed?"
        ) from None


def kill_descendants(bound: float = 15.0) -> list[int]:
    """Kill and reap everything below this process, which must be a sub-reaper. Returns what is left after `bound` s.

    Processes are killed again and again until none is found: one may be started by another in between. A resource
    tracker of multiprocessing ends by itself once those that it tracks for have gone, and cleans up after them: it is
    killed only where it does not.
    """
    began = time.monotonic()
    while True:
        reap_orphans()
        living = descendants(os.getpid())
        passed = time.monotonic() - began
        if not living or passed > bound:
            return living
        for pid in living:
            if passed < _TRACKER_PATIENCE and _is_resource_tracker(pid):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def reap_orphans(*own: subprocess.Popen[bytes]) -> dict[int, int]:
    """Collect dead children other than the given ones, for whose status somebody waits.

    Returns:
        How each ended, by process id: its exit code, negative for a signal.
    """
    kept, ended = {child.pid for child in own}, {}
    for pid in children_by_parent().get(os.getpid(), ()):
        if pid not in kept:
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def kill_stray_orphans(*kept: subprocess.Popen[bytes]) -> list[int]:
    """Kill orphans whose worker is gone: writer processes of a rank that was killed. Returns their ids.

    A worker marks what it starts with its own process id (`channel.mark_children`). What it forked without a new
    program (NVRx's monitors) carry no mark and see its end by themselves.
    """
    killed = []
    for pid in children_by_parent().get(os.getpid(), ()):
        if pid in {child.pid for child in kept}:
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        marks = [
            int(item.partition(b"=")[2]) for item in environment if item.startswith(WORKER.encode() + b"=")
        ]
        if marks and not Path(f"/proc/{marks[0]}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
