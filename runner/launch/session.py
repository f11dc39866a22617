"""One node's part in a run: its folder, its place among the nodes, and as many launches as it takes to meet them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runner.control.channel import Control
from runner.errors import ExitCode, RunError
from runner.launch.launching import Launch, Launched
from runner.launch.place import Place, find_place, managed, own_rank
from runner.launch.printing import print_summary, print_verdict, say
from runner.launch.run_folder import RunFolder
from runner.launch.signals import StopRequests
from runner.launch.watch.verdict import MEETING_OVER
from runner.recipe.resolve import resolve

if TYPE_CHECKING:
    from runner.recipe.load import LoadedRecipe

_HANDOVER = 300.0  # seconds until a file system forgets the lock of a lost node, whose place a new one takes
_MEETINGS = 10  # rendezvous that a node may find closed before it gives up
_NEXT_MEETING = 2.0  # seconds until it looks again


class Session:
    """This node's part in a run.

    Args:
        loaded: the recipe.
        folder: node-local control folder, private to this session.
        verbose: show everything the launcher prints.
        parent: process whose end stops the run.
        relay: where that process' signals are read from, as `StopRequests` does.
        began: wall clock of the start.
    """

    def __init__(
        self, loaded: LoadedRecipe, folder: Path, *, verbose: bool, parent: int, relay: int, began: float
    ) -> None:
        self._recipe = resolve(loaded.recipe, cwd=Path.cwd())
        self._control = Control(folder)
        self._verbose = verbose
        self._parent = parent
        self._began = began
        self._requests = StopRequests(self._recipe, relay)

    def run(self) -> int:
        """Run to the end; returns the exit code, with everything below this process ended."""
        self._requests.listen()
        patience = _HANDOVER if managed() else 0.0
        with contextlib.closing(RunFolder(self._recipe, own_rank(), patience=patience)) as run_folder:
            met = self._launch_until_met(run_folder)
            if met is None:
                say(f"{run_folder.path}: {run_folder.finished()}")
                print_summary(run_folder.path)
                return int(ExitCode.DONE)
            place, launched = met
            print_verdict(launched.verdict, launched.log, verbose=self._verbose)
            refused = launched.verdict.exit_code == ExitCode.BAD_RECIPE  # the run's account is what it was
            if place.node_rank == 0 and not refused:
                print_summary(run_folder.path)
            return launched.verdict.exit_code

    def _launch_until_met(self, run_folder: RunFolder) -> tuple[Place, Launched] | None:
        """Launch, again where the leader was on its way out; None where the run turns out to be finished."""
        meeting = 1
        while True:
            place = self._find_place(run_folder)
            if place is None:
                return None
            run_folder.check_may_go_on()
            run_folder.claim_checkpoints()
            launch = Launch(
                self._recipe,
                place,
                run_folder,
                self._control,
                self._requests,
                parent=self._parent,
                verbose=self._verbose,
            )
            launched = launch.run(self._began)
            if meeting == _MEETINGS or not self._came_too_late(place, launched):
                return place, launched
            say("the leader's rendezvous is over; waiting for its next one")
            time.sleep(_NEXT_MEETING)
            meeting += 1

    def _find_place(self, run_folder: RunFolder) -> Place | None:
        """This node's place; None where the run is finished, before or while it waits for the leader.

        Raises:
            InputError, RunError: as `find_place`.
        """
        if run_folder.finished():
            return None
        try:
            return find_place(
                self._recipe,
                say=say,
                stop_requested=lambda: bool(self._requests or run_folder.finished()),
            )
        except RunError:
            if not self._requests and run_folder.finished():
                return None
            raise

    def _came_too_late(self, place: Place, launched: Launched) -> bool:
        """Whether a follower met a leader that was on its way out: the one that replaces it deserves another try.

        Pods of a Job are replaced one by one; the first may find the former leader's launcher still listening.
        """
        return (
            managed()
            and place.node_rank != 0
            and not self._requests
            and not launched.workers_came
            and launched.verdict.exit_code == ExitCode.CRASHED
            and MEETING_OVER.search(launched.verdict.message) is not None
        )
