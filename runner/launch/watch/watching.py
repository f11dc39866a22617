"""What becomes of this node's workers in one launch: who died or is frozen, and whether another start is any use."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.control.outcome import Outcome, OutcomeReader, write_outcome
from runner.control.signs import WorkerSign
from runner.errors import ExitCode
from runner.launch.budget import WindowBudget
from runner.launch.printing import say
from runner.launch.watch.death import Death, status_name
from runner.launch.watch.deaths import SAME_MOMENT, Deaths
from runner.launch.watch.ends import Ends
from runner.launch.watch.outside import tell_outside_fault
from runner.launch.watch.overdue import OverdueWorkers
from runner.launch.watch.roll import Roll
from runner.launch.watch.stopped import StoppedWorkers
from runner.launch.watch.unwatched import UnwatchedWorkers
from runner.launch.watch.verdict import Watch, ended_launcher, killed_launcher, why_again
from runner.ledger.events import FaultSeen
from runner.ledger.writer import LedgerWriter
from runner.recipe import layer_settings
from runner.recipe.recipe import Recipe

_LAST_ENDS = 2.0  # seconds
_POLL = 0.01
_FROZEN_MARGIN = 1.0  # seconds more than NVRx takes to kill a frozen rank, where it can


class Workers:
    """The workers of one launch, as far as their supervisor sees them.

    Args:
        recipe: the run.
        control: the node's control folder, where they sign.
        run_folder: where records of their faults go.
        log: what the launcher prints; it knows how its children ended.
        outcomes: what workers say that they ended with.
        ledger: told of faults.

    Attributes:
        untold: what was killed that the workers hung on, and no line to the user has named yet; or nothing.
    """

    def __init__(
        self,
        recipe: Recipe,
        control: Path,
        run_folder: Path,
        log: Path,
        outcomes: OutcomeReader,
        ledger: LedgerWriter,
    ) -> None:
        self._layer = recipe.recovery.layer
        self._launcher = launcher = layer_settings.ft_launcher(recipe)
        self._inprocess = layer_settings.inprocess(recipe)
        silence = launcher.rank_heartbeat_timeout.total_seconds() if launcher else 0.0
        self._roll = Roll(control)
        self._overdue = OverdueWorkers(self._roll, control)
        self._unwatched = UnwatchedWorkers(self._roll, control)
        self._stopped = StoppedWorkers(control, _least_stop(recipe))
        alone = self._alone = recipe.cluster.nodes == 1
        self._deaths = Deaths(
            log, run_folder, self._layer, silence, control, alone=alone, stopped=self._stopped
        )
        self._ends = Ends(
            self._roll,
            control,
            run_folder,
            self._layer,
            recipe.recovery.start_timeout.total_seconds(),
            frozen=recipe.recovery.process_group_timeout.total_seconds(),
            alone=alone,
        )
        self._window = WindowBudget(launcher.window if launcher else None, "recovery.ft_launcher.window")
        self._outcomes, self._ledger, self._run_folder = outcomes, ledger, run_folder
        self._outside = self.untold = ""
        self._restarts = self._told = 0
        self._hopeless = self._window_spent = ""

    def look(self, *, launcher_killed: bool = False, server_killed: Callable[[], int] = lambda: 0) -> None:
        """Take in what has happened since the last look; kill what is frozen and cannot be ended otherwise.

        Args:
            launcher_killed: a signal has ended the launcher. Workers die with it: that is no fault of theirs.
            server_killed: says, once, by which signal somebody has ended the fork server, negative; likewise.
        """
        deaths = self._deaths
        self._stopped.look(self._roll.signs(), time.time())
        for sign in self._roll.newcomers():
            deaths.expect(sign, self._outcomes.outcomes())
        gone = self._roll.dead()
        if gone:
            gone += self._roll.dead()  # the one that died first may have done so behind the look's back
            gone = deaths.in_order(gone) if len(gone) > 1 else gone
        if launcher_killed:
            deaths.excuse({sign.pid for sign in gone})
            gone = []
        # Asked when it is known who is gone: the server ends first, and a moment later the kernel ends its workers.
        if by := server_killed():
            deaths.excuse({sign.pid for sign in gone})
            self.fork_server_killed(by)
        found = [deaths.add(sign, self._outcomes.outcomes()) for sign in gone]
        overdue = self._overdue.kill(time.monotonic())
        found += [deaths.add_overdue(one) for one in overdue if not self._ends.took_too_long(one)]
        found += [deaths.add_unwatched(one) for one in self._unwatched.kill()]
        behind = [deaths.add_overdue(one) for one in self._ends.behind(time.monotonic())]
        self._tell_other_nodes(behind)
        found += behind
        for death in found:
            if death is not None:
                self._end_peers(death)
        self._kill_frozen()
        self._tell(deaths.settle())
        self._hopeless = self._hopeless or self._deaths.hopeless()
        while self._restarts < self._roll.most_restarts:
            self._restarts += 1
            self._window.restarted(time.monotonic())
            self._window_spent = self._window_spent or self._window.spent(time.monotonic())
        self._tell_restarts()

    def _tell_other_nodes(self, behind: list[Death]) -> None:
        """Say that the run has failed where all others are done: no rank is left that would, and launchers wait."""
        if self._alone or self._launcher is not None:
            return
        for death in behind:
            sign = death.sign
            outcome = Outcome(
                int(ExitCode.CRASHED), death.account, sign.rank, sign.step, sign.attempt, sign.restart
            )
            try:
                write_outcome(self._run_folder, outcome)
            except OSError as error:  # known here; there it takes until the launcher gives up
                say(f"other nodes are not told of that: {error.filename}: {error.strerror}")

    def pids(self) -> set[int]:
        """Processes that have signed as workers, and not left."""
        return self._roll.pids()

    def monitors(self) -> dict[int, WorkerSign]:
        """NVRx's monitor processes of workers that have signed, and not left: by process id, the worker."""
        return self._unwatched.monitors()

    def reaped(self, ended: Mapping[int, int]) -> None:
        """Take in how orphans of this launch ended: by process id, an exit code or, negative, a signal."""
        self._unwatched.reaped(ended)

    def launch_can_only_end(self) -> bool:
        """Whatever its launcher waits for: a stopped worker hears no SIGTERM."""
        outcomes = self._outcomes.outcomes()
        if self._hopeless or self._window_spent or any(outcome.decisive for outcome in outcomes):
            return True
        if self._ends.stuck(time.monotonic()):
            return True
        # Without a fork server a launcher sees how a worker ended that was done, and may start all again for that.
        if self._roll.again_after_all_done and any(one.exit_code == ExitCode.DONE for one in outcomes):
            return True
        mended = self._launcher is not None
        return not mended and (bool(self._deaths.all) or any(outcome.exit_code for outcome in outcomes))

    def fork_server_killed(self, by: int) -> None:
        """Somebody has ended the fork server, by a signal: negative."""
        self.untold = f"the fork server was killed ({status_name(by)}), and its workers with it"
        self.outside_fault(self.untold)

    def outside_fault(self, what: str) -> None:
        """Something was killed that the workers hang on: what they say or how they end now is no fault of theirs."""
        self._outside = what
        self._deaths.excuse(self._roll.pids())
        tell_outside_fault(self._ledger, self._run_folder, self._layer, self._roll.latest(), what)

    def _tell(self, settled: list[Death]) -> None:
        """Tell the account of deaths, with the moment in which each was seen: now it is known whose fault it was."""
        layer = "launcher" if self._launcher is not None else self._layer
        for death in settled:
            if not self._deaths.excused(death):
                seen = FaultSeen(layer, death.account, death.lasted)
                self._ledger.record(seen, ago=max(0.0, time.time() - death.seen))

    def settle(
        self,
        launcher_status: int,
        stop_requested: str,
        launcher_ended_by: str = "",
        *,
        ended_here: bool = False,
    ) -> Watch:
        """The launch has ended: all that was seen of it.

        Args:
            launcher_status: exit status of the launcher, negative for a signal.
            stop_requested: signal that asked to stop, or nothing.
            launcher_ended_by: signal from elsewhere that the launcher ended its workers and itself by, or nothing.
            ended_here: this process has ended the launcher.
        """
        ended_at = time.time()
        killed = launcher_status < 0 and not ended_here and not self._ending_before(ended_at - SAME_MOMENT)
        launcher_ended_by = "" if stop_requested else launcher_ended_by
        fault = ""
        if self._roll.seen_any and not stop_requested:
            if launcher_ended_by:
                fault = ended_launcher(launcher_ended_by)
            elif killed:
                fault = killed_launcher(launcher_status)
        if fault:
            self.outside_fault(fault)
        # What a launcher has killed is a client of the fork server, which kills the worker itself a moment later.
        until = time.monotonic() + _LAST_ENDS
        while self._roll.any_lives() and time.monotonic() < until:
            time.sleep(_POLL)
        self.look(launcher_killed=killed)
        self._tell(self._deaths.settle(finally_=True))
        self._ends.tell()
        launcher = self._launcher
        outside = fault or (
            self._outside if launcher is None else ""
        )  # else its workers started again after it
        return Watch(
            launcher_status=launcher_status,
            outside=outside,
            deaths=self._deaths.all,
            hopeless=self._hopeless,
            window_spent=self._window_spent,
            budget_spent=launcher is not None and self._roll.most_restarts >= launcher.max_restarts,
            workers_came=self._roll.seen_any,
            all_done=self._roll.all_done,
            stop_requested=stop_requested,
        )

    def _ending_before(self, moment: float) -> bool:
        """Whether the launch was about to end for a fault of a rank; wall clock. A launcher that mends goes on."""
        if self._launcher is not None:
            return False
        faults = [death.seen for death in self._deaths.all if not death.consequence]
        faults += [one.time for one in self._outcomes.outcomes() if _is_fault(one)]
        return any(at < moment for at in faults)

    def _tell_restarts(self) -> None:
        """Say of each restart what made it necessary, as soon as it is known how the dead have died."""
        if any(outcome.decisive for outcome in self._outcomes.outcomes()):
            self._told = self._restarts  # these starts find nothing left to do
        while self._told < self._restarts and all(death.recorded for death in self._deaths.all):
            excused = any(
                self._deaths.excused(death) for death in self._deaths.all if death.sign.restart == self._told
            )
            outside = self._outside if excused else ""
            self.untold = "" if excused else self.untold
            what = why_again(self._outcomes.outcomes(), self._deaths.all, self._told, outside)
            self._told += 1
            budget = f" of {self._launcher.max_restarts}" if self._launcher is not None else ""
            say(f"{what}; restart {self._told}{budget} of the workers")

    def _end_peers(self, death: Death) -> None:
        """End the workers of this node that are to be respawned because of another's death.

        The launcher does so too, when it next looks, or, where the kernel does not say how a process ends, only when
        the dead one is gone for good. A GPU's driver takes half a second to clear up behind a process: this way it
        clears up behind all of them at once.
        """
        if self._inprocess is None and self._launcher is not None:
            for sign in self._roll.others(death.sign):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sign.pid, signal.SIGTERM)

    def _kill_frozen(self) -> None:
        """Kill what in-process restart cannot: a frozen rank 0 freezes the store, which its killers would ask first."""
        settings = self._inprocess
        if settings is None:
            return
        longest = (settings.hard_timeout + settings.termination_grace).total_seconds() + _FROZEN_MARGIN
        for sign in self._roll.frozen(longest):
            say(f"rank {sign.rank} has been frozen (SIGSTOP) for {longest:.0f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(sign.pid, signal.SIGKILL)


def _least_stop(recipe: Recipe) -> float:
    """Seconds that a rank must have been stopped for to be why others were silent: half of what a layer waits."""
    launcher, inprocess = layer_settings.ft_launcher(recipe), layer_settings.inprocess(recipe)
    waits = [recipe.recovery.process_group_timeout]
    waits += [launcher.rank_heartbeat_timeout] if launcher is not None else []
    waits += [inprocess.hard_timeout] if inprocess is not None else []
    return min(waits).total_seconds() / 2


def _is_fault(outcome: Outcome) -> bool:
    return bool(outcome.exit_code) and not outcome.consequence
