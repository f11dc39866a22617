"""`run`: one node's part of a run, from the launcher's start to one exit code and a summary.

Two processes. The one that the user started only waits, passes signals on and returns the other's exit code; the other
one supervises. Each is the sub-reaper of everything below it, so whichever of the two is killed, the one that is left
kills and reaps the rest: launchers, their monitors, workers and checkpoint writers.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from runner.errors import ExitCode, RunError, in_another_locale, storage_error
from runner.launch.children import kill_descendants
from runner.launch.signals import hold_back, ignore_job_control, stop_signals
from runner.launch.stale import PREFIX
from runner.launch.terminal import append_to_files
from runner.launch.thaw import Frozen
from runner.streams import complain
from runner.system.process import adopt_orphans, state_of

if TYPE_CHECKING:
    from runner.recipe.load import LoadedRecipe
    from runner.recipe.recipe import Recipe


_LONGEST_WAIT = 0.5  # seconds


def run(loaded: LoadedRecipe, *, verbose: bool = False) -> int:
    """Train from a recipe on this node. Returns the product's exit code.

    Args:
        loaded: the checked recipe.
        verbose: show what the launcher and all ranks print, and tracebacks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    append_to_files()
    adopt_orphans()
    signals = stop_signals(loaded.recipe)
    hold_back(signals)
    with control_folder() as control:
        parent = os.getpid()
        heard, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            code = int(ExitCode.CRASHED)
            try:
                code = _supervise(loaded, control, verbose, parent, heard)
            except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's stack
                traceback.print_exc()
            finally:
                with contextlib.suppress(
                    OSError, AttributeError
                ):  # nobody reads any more; the code still counts
                    sys.stdout.flush()
                    sys.stderr.flush()
                if os.getppid() != parent:  # killed: its folder is ours to remove
                    shutil.rmtree(control, ignore_errors=True)
                os._exit(code)
        return _wait(child, told, signals, loaded.recipe, control)


@contextlib.contextmanager
def control_folder() -> Iterator[Path]:
    """The control folder of a run on this node. What cannot be removed of it changes nothing in how the run ended."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
    if os.path.lexists(folder):
        complain(f"nvrx-run: {folder} cannot be removed and is left behind: something of it is in use")


def _wait(child: int, told: int, signals: frozenset[signal.Signals], recipe: Recipe, control: Path) -> int:
    def forward(number: int, _frame: FrameType | None) -> None:
        # It may have ended in this moment, or hear of more signals than it counts.
        with contextlib.suppress(OSError):
            os.write(told, bytes([number]))

    for number in signals:
        signal.signal(number, forward)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # as its supervisor: see `ignore_job_control`
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        ended = os.pidfd_open(child)
        frozen = Frozen()
        # A signal that arrives just before a wait begins is forwarded when that ends: no wait is long.
        while not select.select([ended], [], [], _LONGEST_WAIT)[0]:
            if frozen.wake([child]):
                complain(
                    "nvrx-run: the supervisor was stopped (SIGSTOP) and is woken: nobody else ends the run"
                )
        os.close(ended)
        _, status = os.waitpid(child, 0)
    finally:
        for number in signals:  # the run is over: how it ended is not changed by a late wish that it stop
            signal.signal(number, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        from runner.launch.bereft import conclude_for_supervisor

        conclude_for_supervisor(recipe, control, code)
        return int(ExitCode.CRASHED)
    return code


def _supervise(loaded: LoadedRecipe, control: Path, verbose: bool, parent: int, relay: int) -> int:
    from runner.launch.session import Session

    adopt_orphans()
    ignore_job_control()
    began = time.time()
    try:
        return Session(loaded, control, verbose=verbose, parent=parent, relay=relay, began=began).run()
    except RunError as error:
        if verbose:
            traceback.print_exc()
        complain(f"nvrx-run: {error}")
        return int(error.exit_code)
    except OSError as error:
        if verbose:
            traceback.print_exc()
        failure = storage_error(error)
        complain(f"nvrx-run: {failure}")
        return int(failure.exit_code)
    except UnicodeEncodeError as error:  # of a path
        if verbose:
            traceback.print_exc()
        complain(f"nvrx-run: {in_another_locale(error)}")
        return int(ExitCode.BAD_RECIPE)
    finally:
        kill_descendants()
        if state_of(parent) == "T" and os.getppid() == parent:  # nobody else is left who would wake it
            os.kill(parent, signal.SIGCONT)
