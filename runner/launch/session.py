"""One launch on one node: the launcher's life as its supervisor sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from runner.checkpoint.shm import remove_leftovers
from runner.errors import ExitCode, RunError, no_room
from runner.launch import children
from runner.launch.budget import WindowBudget
from runner.launch.control import CONTROL, RUN_FOLDER, RUN_ID, START_TIMEOUT, TERMINAL, VERBOSE, Control
from runner.launch.deaths import Death, Deaths
from runner.launch.durable import probe
from runner.launch.earlier import note_earlier_launches
from runner.launch.forks import fork_server
from runner.launch.outcome import Outcome, OutcomeReader
from runner.launch.overdue import OverdueWorkers
from runner.launch.place import Place, find_place, managed, own_rank
from runner.launch.pod import LeaderWatch
from runner.launch.presence import Roll
from runner.launch.run_folder import RunFolder
from runner.launch.signals import stop_signals
from runner.launch.terminal import offer_terminal
from runner.launch.verdict import MEETING_OVER, Verdict, Watch, conclude
from runner.ledger.events import FaultSeen, LaunchEnded, LaunchStarted
from runner.ledger.sinks.live import live_reporting
from runner.ledger.writer import LedgerWriter
from runner.recipe.recovery import ft_launcher_settings, inprocess_settings
from runner.recipe.resolve import resolve
from runner.streams import complain, fit_for_output

if TYPE_CHECKING:
    from runner.recipe.load import LoadedRecipe

_POLL = 0.05  # seconds; a dead worker, an outcome or a signal is seen within this time
_STRAYS_EVERY = 2.0
_HANDOVER = 300.0  # seconds until a file system forgets the lock of a lost node, whose place a new one takes
_FILE_PATIENCE = (
    60.0  # seconds until another node's file must be seen: NFS keeps listings of folders for so long
)
_FROZEN_MARGIN = 1.0  # seconds more than NVRx takes to kill a frozen rank, where it can
_GRACE = 5.0  # seconds for the other ranks to end by themselves once the run is over
_FAREWELL = (
    15.0  # seconds for a follower to end by itself once another pod leads: to see a save, to hear of a fault
)
_MEETINGS = 10  # rendezvous that a node may find closed before it gives up
_NEXT_MEETING = 2.0  # seconds until it looks again


class Session:
    """Runs the launcher once and says what became of it.

    Args:
        loaded: the recipe.
        folder: node-local control folder, private to this launch.
        verbose: show everything the launcher prints.
        parent: process whose end stops the run.
        began: wall clock of the start.
    """

    def __init__(
        self, loaded: LoadedRecipe, folder: Path, *, verbose: bool, parent: int, began: float
    ) -> None:
        self._recipe = resolve(loaded.recipe, cwd=Path.cwd())
        self._source = loaded.path
        self._control = Control(folder)
        self._roll = Roll(folder)
        self._overdue = OverdueWorkers(self._roll, folder)
        self._verbose = verbose
        self._parent = parent
        self._began = began
        self._signals: list[int] = []
        self._watch = Watch()
        settings = ft_launcher_settings(self._recipe.recovery)
        self._window = WindowBudget(settings.window if settings else None, "recovery.ft_launcher.window")
        self._restarts = 0
        self._place: Place

    def run(self) -> int:
        """Run to the end of this launch; returns the exit code, with everything below this process ended."""
        self._listen()
        patience = _HANDOVER if managed() else 0.0
        with contextlib.closing(RunFolder(self._recipe, own_rank(), patience=patience)) as run_folder:
            for meeting in range(1, _MEETINGS + 1):
                if not self._has_place(run_folder):
                    _say(f"{run_folder.path}: {run_folder.finished()}")
                    self._summary(run_folder)
                    return int(ExitCode.DONE)
                self._watch = Watch()
                verdict, log = self._launch(run_folder)
                if meeting == _MEETINGS or not self._came_too_late(verdict):
                    break
                _say("the leader's rendezvous is over; waiting for its next one")
                time.sleep(_NEXT_MEETING)
            self._report(verdict, run_folder, log)
            return verdict.exit_code

    def _has_place(self, run_folder: RunFolder) -> bool:
        """Find this node's place; False where the run is finished, before or while it waits for the leader.

        Raises:
            InputError, RunError: as `find_place`.
        """
        if run_folder.finished():
            return False
        try:
            self._place = find_place(
                self._recipe,
                say=_say,
                stop_requested=lambda: bool(self._signals or run_folder.finished()),
            )
        except RunError:
            if not self._signals and run_folder.finished():
                return False
            raise
        return True

    def _came_too_late(self, verdict: Verdict) -> bool:
        """Whether a follower met a leader that was on its way out: the one that replaces it deserves another try.

        Pods of a Job are replaced one by one; the first may find the former leader's launcher still listening.
        """
        return (
            managed()
            and self._place.node_rank != 0
            and not self._signals
            and not self._watch.workers_came
            and verdict.exit_code == ExitCode.CRASHED
            and MEETING_OVER.search(verdict.message) is not None
        )

    def _launch(self, run_folder: RunFolder) -> tuple[Verdict, Path]:
        recipe_path = run_folder.write_recipe()
        argv = self._place.argv(self._recipe, recipe_path)
        remove_leftovers(run_folder.run_id)  # of a launch whose machine was switched off
        outcomes = OutcomeReader(run_folder.path, self._control.folder)
        note_earlier_launches(run_folder.path, self._control)
        ledger = LedgerWriter(run_folder.path, rank=-1, life=f"launch-{self._began:.0f}")
        ledger.record(LaunchStarted(argv, self._recipe.recovery.layer, _versions()))
        log = run_folder.next_log()
        verdict = Verdict(int(ExitCode.CRASHED), "the supervisor failed")
        try:
            live = live_reporting(self._recipe.output.live, run_folder.path, self._recipe.name)
            with log.open("wb") as output, live:
                verdict = self._supervised(argv, run_folder, outcomes, ledger, log, output)
        except RunError as error:
            verdict = Verdict(int(error.exit_code), str(error))
        finally:
            children.kill_descendants()
            remove_leftovers(run_folder.run_id)
            ledger.record(LaunchEnded(verdict.exit_code))
            ledger.close()
        if verdict.exit_code == ExitCode.DONE and self._place.node_rank == 0:
            self._mark_finished(run_folder)
        return self._with_room(verdict, run_folder), log

    def _mark_finished(self, run_folder: RunFolder) -> None:
        try:
            run_folder.mark_finished()
        except OSError as error:
            _say(
                f"the run is done, which the next command has to find out: {error.filename}: {error.strerror}"
            )

    def _with_room(self, verdict: Verdict, run_folder: RunFolder) -> Verdict:
        """A crash for which there may be no record, on a disk that is full: to start again needs room first."""
        if verdict.exit_code != ExitCode.CRASHED:
            return verdict
        error = probe(run_folder.path)
        if error is None or not no_room(error):
            return verdict
        remedy = "make room, then run the same command"
        message = f"{run_folder.path}: {error.strerror}; {remedy} (besides: {verdict.message})"
        return Verdict(int(ExitCode.SAVE_FAILED), message, verdict.traceback)

    def _supervised(
        self,
        argv: list[str],
        run_folder: RunFolder,
        outcomes: OutcomeReader,
        ledger: LedgerWriter,
        log: Path,
        output: IO[bytes],
    ) -> Verdict:
        environment = self._place.environment(self._recipe) | {
            RUN_ID: run_folder.run_id,
            RUN_FOLDER: str(run_folder.path),
            CONTROL: str(self._control.folder),
            START_TIMEOUT: str(self._recipe.recovery.start_timeout.total_seconds()),
            TERMINAL: offer_terminal(),
            VERBOSE: "1" if self._verbose else "0",
        }
        forks = fork_server(run_folder.path / "recipe.yaml", environment, output, self._control)
        with forks as more, LeaderWatch(self._place.leader_elsewhere) as leader:
            # Launchers make a folder for logs, of which there are none here, and leave it behind.
            scratch = f"--log-dir={self._control.folder}/launcher"
            started = [*_program(argv[0]), scratch, *argv[1:]]
            launcher = children.start(started, environment | more.environment, output, folder=Path.cwd())
            monitored = ft_launcher_settings(self._recipe.recovery)
            silence = monitored.rank_heartbeat_timeout.total_seconds() if monitored else 0.0
            deaths = Deaths(log, run_folder.path, self._recipe.recovery.layer, silence, self._control.folder)
            follow = _follow(log) if self._verbose else None
            over_at: float | None = None
            stop_at = strays_at = 0.0
            while launcher.poll() is None:
                time.sleep(_POLL)
                now = time.monotonic()
                if follow is not None:
                    follow()
                self._look_for_deaths(deaths, outcomes, ledger)
                if more.look():
                    _say(
                        f"the fork server hung in its imports and was killed (recovery.start_timeout): see {log}"
                    )
                if leader.gone_for() > _FAREWELL:
                    raise RunError(
                        "the pod of index 0 was replaced, without a word of the old one; this one has to be, too"
                    )
                if os.getppid() != self._parent:
                    raise RunError("the process that started this run was killed; the run is stopped")
                if self._signals:
                    stop_at = self._stop(run_folder, stop_at, now)
                if over_at is None and self._is_over(outcomes.outcomes(), deaths):
                    over_at = now
                if over_at is not None and now > over_at + _GRACE:
                    self._end(launcher, force=now > over_at + 2 * _GRACE)
                if now > strays_at:
                    strays_at = now + _STRAYS_EVERY
                    children.kill_stray_orphans(launcher, *more.processes)
                    children.reap_orphans(launcher, *more.processes)
            if follow is not None:
                follow()
        if launcher.returncode == 0:
            self._await_last_word(outcomes)
        self._look_for_deaths(deaths, outcomes, ledger)
        deaths.settle(finally_=True)
        self._watch.deaths = deaths.all
        settings = ft_launcher_settings(self._recipe.recovery)
        self._watch.launcher_status = launcher.returncode
        self._watch.workers_came = self._roll.seen_any
        self._watch.budget_spent = settings is not None and self._roll.most_restarts >= settings.max_restarts
        return conclude(outcomes.outcomes(), self._watch, self._recipe, log)

    def _await_last_word(self, outcomes: OutcomeReader) -> None:
        """Rank 0 says that the run is done, maybe on another node: its file takes its time on a shared file system."""
        until = time.monotonic() + (_FILE_PATIENCE if self._recipe.cluster.nodes > 1 else 0.0)
        while time.monotonic() < until:
            if any(one.decisive or one.exit_code == ExitCode.DONE for one in outcomes.outcomes()):
                return
            time.sleep(_POLL)

    def _listen(self) -> None:
        def received(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        signals = stop_signals(self._recipe)
        for number in signals:
            signal.signal(number, received)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    def _stop(self, run_folder: RunFolder, stop_at: float, now: float) -> float:
        """Carry out what signals ask for; returns the moment at which patience ends."""
        name = signal.Signals(self._signals[0]).name
        if len(self._signals) > 1:
            raise RunError(f"stopped at once on a second signal; {_RESUME}")
        if not stop_at:
            patience = self._recipe.recovery.stop_timeout.total_seconds()
            self._control.request_stop(name)
            _say(f"{name}: saving and stopping after this step (a second signal stops at once)")
            self._watch.stop_requested = name
            return now + patience
        if now > stop_at:
            raise RunError(
                f"did not stop within {self._recipe.recovery.stop_timeout.total_seconds():.0f} s of {name} "
                f"(recovery.stop_timeout); {_RESUME}"
            )
        return stop_at

    def _is_over(self, outcomes: list[Outcome], deaths: Deaths) -> bool:
        """Whether this launch can only end, whatever its launcher waits for: a stopped worker hears no SIGTERM."""
        if self._watch.hopeless or self._watch.window_spent or any(outcome.decisive for outcome in outcomes):
            return True
        mended = ft_launcher_settings(self._recipe.recovery) is not None
        return not mended and (bool(deaths.all) or any(outcome.exit_code for outcome in outcomes))

    def _end(self, launcher: subprocess.Popen[bytes], force: bool) -> None:
        """The run is over and the launcher does not know it."""
        with contextlib.suppress(ProcessLookupError):
            launcher.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def _look_for_deaths(self, deaths: Deaths, outcomes: OutcomeReader, ledger: LedgerWriter) -> None:
        layer = self._recipe.recovery.layer
        found = [deaths.add(sign, outcomes.outcomes()) for sign in self._roll.dead()]
        found += [deaths.add_overdue(overdue) for overdue in self._overdue.kill(time.monotonic())]
        for death in found:
            if death is not None:
                ledger.record(FaultSeen("launcher" if "ft_launcher" in layer else layer, str(death)))
                self._end_peers(death)
        self._kill_frozen()
        deaths.settle()
        self._watch.hopeless = self._watch.hopeless or deaths.hopeless()
        while self._restarts < self._roll.most_restarts:
            self._restarts += 1
            self._window.restarted(time.monotonic())
            self._watch.window_spent = self._watch.window_spent or self._window.spent(time.monotonic())

    def _end_peers(self, death: Death) -> None:
        """End the workers of this node that are to be respawned because of another's death.

        The launcher does so too, but only when the dead one is gone for good: a GPU's driver takes half a second to
        clear up behind a process. This way it clears up behind all of them at once.
        """
        if inprocess_settings(self._recipe.recovery) is None and ft_launcher_settings(self._recipe.recovery):
            for sign in self._roll.others(death.sign):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sign.pid, signal.SIGTERM)

    def _kill_frozen(self) -> None:
        """Kill what in-process restart cannot: a frozen rank 0 freezes the store, which its killers would ask first."""
        settings = inprocess_settings(self._recipe.recovery)
        if settings is None:
            return
        longest = (settings.hard_timeout + settings.termination_grace).total_seconds() + _FROZEN_MARGIN
        for sign in self._roll.frozen(longest):
            _say(f"rank {sign.rank} has been frozen (SIGSTOP) for {longest:.0f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(sign.pid, signal.SIGKILL)

    def _report(self, verdict: Verdict, run_folder: RunFolder, log: Path) -> None:
        if verdict.exit_code != ExitCode.DONE:
            if self._verbose and verdict.traceback:
                complain(verdict.traceback)
            _say(verdict.message)
            # Only what nobody foresaw needs more than the sentence above.
            if not self._verbose and verdict.exit_code == ExitCode.CRASHED:
                _say(f"details in {log} (or --verbose)")
        if self._place.node_rank == 0:
            self._summary(run_folder)

    def _summary(self, run_folder: RunFolder) -> None:
        from runner.report.summary import render

        try:
            text = render(run_folder.path)
        except (RunError, OSError) as error:  # a lost ledger takes nothing from the run
            _say(f"there is no summary: {error}")
            return
        try:
            print(fit_for_output(f"\n{text}"), flush=True)
        except BrokenPipeError:
            pass
        except OSError as error:
            sys.stdout = None  # nothing is left in it to fail once more at the end
            _say(f"the summary cannot be written: {error.strerror}")


_RESUME = "the same command goes on from the last checkpoint"


def _program(launcher: str) -> list[str]:
    """What to start for the launcher that a command names."""
    if Path(launcher).name == "ft_launcher":
        return [sys.executable, "-m", "runner.launch.prompt_launcher"]
    return [launcher]


def _say(line: str) -> None:
    complain(f"nvrx-run: {line}")


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("nvrx-run", "torch", "nvidia-resiliency-ext", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _follow(path: Path) -> Callable[[], None]:
    """Copies what is new in a file to standard error, at each call."""

    def lines() -> Iterator[None]:
        with path.open("rb") as file:
            while True:
                with contextlib.suppress(OSError):  # nobody reads it any more; the file has it
                    sys.stderr.buffer.write(file.read())
                    sys.stderr.buffer.flush()
                yield

    reader = lines()
    return lambda: next(reader)
