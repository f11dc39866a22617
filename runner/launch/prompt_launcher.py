"""ft_launcher, without waits that have nothing to wait for: `python -m runner.launch.prompt_launcher ARGUMENTS`.

At every restart the launcher of NVRx 0.6 and 0.7 spends two seconds asleep:

- it sends SIGTERM to the process groups of the workers that it has just ended, sleeps for a second, and sends SIGKILL.
  The second is a grace for what a worker may have left behind; here it ends with the last of these processes;
- it opens the next round of the rendezvous, looks whether the last one is open, and looks again a second later.
  Here it goes on to the round that is open first, which is what NVRx does after its first look.

All else, arguments included, is NVRx's own; releases without these waits are left as they are.

What it forks, its rank monitors, dies with it, although nobody may be left to end them: `kill -9 %1` takes the whole
command at once.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from runner.system.process import die_with_parent

GRACE = 1.0  # seconds, as in NVRx
_POLL = 0.01
_PACKAGE = "nvidia_resiliency_ext.fault_tolerance"


def end_groups(allowed_pgids: Iterable[int]) -> None:
    """Terminate process groups: SIGTERM, up to `GRACE` until all are empty, SIGKILL. Best effort, as NVRx's own.

    Args:
        allowed_pgids: the groups; nothing is done where group 1 is among them, also as in NVRx.
    """
    groups = set(allowed_pgids)
    if 1 in groups:
        return
    end = time.monotonic() + GRACE
    groups = _signal(groups, signal.SIGTERM)
    while (groups := _signal(groups, 0)) and time.monotonic() < end:
        time.sleep(_POLL)
    _signal(groups, signal.SIGKILL)


def _signal(groups: set[int], number: int) -> set[int]:
    """Signal every group (0: only look); those that hold a process, a zombie too."""
    reached = set()
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            reached.add(group)
    return reached


def shorten(launcher: Any, state: Any) -> set[str]:
    """Shorten the two waits where this release has them.

    Args:
        launcher: NVRx's module of the launcher.
        state: NVRx's class of the rendezvous' state; None where the release has no such.

    Returns:
        What was shortened: `grace`, `round`.
    """
    done = set()
    theirs = getattr(launcher, "terminate_mp_processes", None)
    if theirs is not None and list(inspect.signature(theirs).parameters) == ["allowed_pgids"]:
        launcher.terminate_mp_processes = end_groups
        done.add("grace")
    if hasattr(state, "_sync_from_per_round_state") and hasattr(state, "_wait_for_rendezvous_open"):
        wait = state._wait_for_rendezvous_open

        def wait_after_a_look(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._sync_from_per_round_state()
            return wait(self, *args, **kwargs)

        state._wait_for_rendezvous_open = wait_after_a_look
        done.add("round")
    return done


def shorten_installed() -> set[str]:
    """`shorten`, on the NVRx that is installed."""
    launcher = importlib.import_module(f"{_PACKAGE}.launcher")
    try:
        state = importlib.import_module(f"{_PACKAGE}.ft_rendezvous_barrier")._RendezvousBarrierState
    except (ModuleNotFoundError, AttributeError):
        state = None
    return shorten(launcher, state)


def take_along() -> None:
    """Have what this process forks from now on die with it.

    Only what the main thread forks: the kernel would send the signal already when another thread ends.
    """
    forking: list[int] = []

    def before() -> None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        forking[:] = [os.getpid()] if in_main_thread else []

    def in_child() -> None:
        if forking:
            die_with_parent(forking[0])

    os.register_at_fork(before=before, after_in_child=in_child)


def main() -> None:
    """Run NVRx's launcher with this process's arguments."""
    take_along()
    shorten_installed()
    sys.exit(importlib.import_module(f"{_PACKAGE}.launcher").main())


if __name__ == "__main__":
    main()
