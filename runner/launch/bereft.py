"""What the process that the user started does where its supervisor was killed: clear up, and say how the run ended."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from runner.checkpoint.shm import remove_leftovers
from runner.control.silence import EmptyStacks
from runner.errors import ExitCode, RunError
from runner.launch.children import kill_descendants
from runner.launch.place import own_rank
from runner.launch.printing import print_summary, say
from runner.launch.run_folder import RunFolder
from runner.launch.watch.death import status_name
from runner.launch.watch.outside import tell_outside_fault
from runner.launch.watch.roll import Roll
from runner.ledger.events import LaunchEnded
from runner.ledger.writer import LedgerWriter
from runner.recipe.recipe import Recipe
from runner.recipe.resolve import resolve


def conclude_for_supervisor(recipe: Recipe, control: Path, code: int) -> None:
    """End what a killed supervisor has left, remove the run's shared memory and empty files, and tell of the fault.

    Args:
        recipe: the run.
        control: the supervisor's folder, in which its workers have signed.
        code: what it ended with: a signal, negative.
    """
    seen = time.time()
    latest = Roll(control).latest()
    left = kill_descendants()
    EmptyStacks(control).remove(time.monotonic(), all_gone=True)
    fault = f"the supervisor was killed ({status_name(code)}), and its workers with it"
    try:
        with contextlib.closing(RunFolder(resolve(recipe, cwd=Path.cwd()), own_rank())) as folder:
            if not left:  # else it is stuck in the kernel: its memory is in use
                remove_leftovers(folder.run_id)
            ledger = LedgerWriter(folder.path, rank=-1, life=f"launch-{seen:.0f}")
            ago = time.time() - seen
            tell_outside_fault(ledger, folder.path, recipe.recovery.layer, latest, fault, ago)
            ledger.record(LaunchEnded(int(ExitCode.CRASHED)))
            ledger.close()
            say(f"{fault}; the same command resumes the run")
            if own_rank() == 0:
                print_summary(folder.path)
    except (
        RunError
    ) as error:  # the next command has the folder already, or cannot use it either; it clears up
        say(f"{fault}; what it leaves is not cleared up: {error}")
