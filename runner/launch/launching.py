"""One launcher's life on one node, from its start to the verdict on it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.checkpoint.shm import remove_leftovers
from runner.control.channel import CONTROL, RUN_FOLDER, RUN_ID, START_TIMEOUT, TERMINAL, VERBOSE, Control
from runner.control.earlier import note_earlier_launches
from runner.control.outcome import OutcomeReader
from runner.control.silence import EmptyStacks, remove_leftover_stacks
from runner.errors import ExitCode, RunError, no_room
from runner.launch import children
from runner.launch.forks import Beside, fork_server
from runner.launch.place import Place
from runner.launch.pod import LeaderWatch
from runner.launch.printing import follow, say
from runner.launch.run_folder import RunFolder
from runner.launch.scratch import scratch_environ
from runner.launch.signals import StopRequests
from runner.launch.stale import remove_stale, sign
from runner.launch.terminal import offer_terminal
from runner.launch.thaw import LOOK_EVERY, Thaw
from runner.launch.watch.suspension import SuspensionWatch
from runner.launch.watch.verdict import Verdict, Watch, conclude, signal_to_launcher
from runner.launch.watch.watching import Workers
from runner.ledger.events import FaultSeen, LaunchEnded, LaunchStarted
from runner.ledger.sinks.live import live_reporting
from runner.ledger.writer import LedgerWriter
from runner.recipe import layer_settings
from runner.recipe.recipe import Recipe
from runner.system.durable import probe
from runner.system.process import LONGEST_KILL

_POLL = 0.05  # seconds; a dead worker, an outcome or a signal is seen within this time
_STRAYS_EVERY = 2.0
_FILE_PATIENCE = (
    60.0  # seconds until another node's file must be seen: NFS keeps listings of folders for so long
)
_GRACE = 5.0  # seconds for the other ranks to end by themselves once the run is over
_FAREWELL = (
    15.0  # seconds for a follower to end by itself once another pod leads: to see a save, to hear of a fault
)


@dataclass(frozen=True)
class Launched:
    """What became of a launch.

    Attributes:
        verdict: on it.
        log: what the launcher printed.
        workers_came: whether any worker started.
    """

    verdict: Verdict
    log: Path
    workers_came: bool


class Launch:
    """Runs the launcher once.

    Args:
        recipe: resolved.
        place: this node's.
        run_folder: locked for this node.
        control: node-local folder, private to this supervisor.
        requests: signals that ask to stop.
        parent: process whose end stops the run.
        verbose: show everything the launcher prints.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: Place,
        run_folder: RunFolder,
        control: Control,
        requests: StopRequests,
        *,
        parent: int,
        verbose: bool,
    ) -> None:
        self._recipe, self._place, self._folder, self._control = recipe, place, run_folder, control
        self._requests, self._parent, self._verbose = requests, parent, verbose
        self._watch = Watch()
        self._ends_launcher = False
        self._workers: Workers | None = None
        assert control.folder is not None
        self._empty_stacks = EmptyStacks(control.folder)

    def run(self, began: float) -> Launched:
        """To its end, with everything below this process ended.

        Args:
            began: wall clock of the command's start, which names the launch in the ledger.
        """
        folder, recipe = self._folder, self._recipe
        argv = self._place.argv(recipe, folder.write_recipe())
        remove_leftovers(folder.run_id)  # of a launch whose machine was switched off
        assert self._control.folder is not None
        processes = (self._parent, os.getpid())
        sign(self._control.folder, folder.path, folder.run_id, self._place.node_rank, processes)
        remove_stale(folder.path, self._place.node_rank)
        if self._place.node_rank == 0:
            remove_leftover_stacks(folder.path)
        outcomes = OutcomeReader(folder.path, self._control.folder)
        note_earlier_launches(folder.path, self._control)
        ledger = LedgerWriter(folder.path, rank=-1, life=f"launch-{began:.0f}")
        ledger.record(LaunchStarted(argv, recipe.recovery.layer, _versions()))
        log = folder.next_log()
        verdict = Verdict(int(ExitCode.CRASHED), "the supervisor failed")
        try:
            live = live_reporting(recipe.output.live, folder.path, recipe.name)
            with log.open("wb") as output, live, SuspensionWatch(ledger):
                verdict = self._supervised(argv, outcomes, ledger, log, output)
        except RunError as error:
            verdict = Verdict(int(error.exit_code), str(error))
            fault = str(error).partition(";")[0]
            if self._workers is not None:
                self._workers.outside_fault(fault)
            else:
                ledger.record(FaultSeen("launcher", fault))
        finally:
            children.kill_descendants()
            remove_leftovers(folder.run_id)
            self._empty_stacks.remove(time.monotonic(), all_gone=True)
            ledger.record(LaunchEnded(verdict.exit_code))
            ledger.close()
        if verdict.exit_code == ExitCode.DONE and self._place.node_rank == 0:
            self._mark_finished()
        return Launched(self._with_room(verdict), log, self._watch.workers_came)

    def _supervised(
        self, argv: list[str], outcomes: OutcomeReader, ledger: LedgerWriter, log: Path, output: IO[bytes]
    ) -> Verdict:
        assert self._control.folder is not None
        environment = self._place.environment(self._recipe)
        environment |= scratch_environ(self._control.folder, environment) | {
            RUN_ID: self._folder.run_id,
            RUN_FOLDER: str(self._folder.path),
            CONTROL: str(self._control.folder),
            START_TIMEOUT: str(self._recipe.recovery.start_timeout.total_seconds()),
            TERMINAL: offer_terminal(),
            VERBOSE: "1" if self._verbose else "0",
        }
        workers = self._workers = Workers(
            self._recipe, self._control.folder, self._folder.path, log, outcomes, ledger
        )
        forks = fork_server(self._folder.path / "recipe.yaml", environment, output, self._control)
        with forks as beside, LeaderWatch(self._place.leader_elsewhere) as leader:
            # Launchers make a folder for logs, of which there are none here, and leave it behind.
            scratch = f"--log-dir={self._control.folder}/launcher"
            started = [*_program(argv[0]), scratch, *argv[1:]]
            launcher = children.start(started, environment | beside.environment, output, folder=Path.cwd())
            self._until_it_ends(launcher, workers, leader, log, beside)
        status = -signal.SIGKILL if launcher.returncode is None else launcher.returncode
        if status == 0:
            self._await_last_word(outcomes)
        ended_by = "" if self._ends_launcher else signal_to_launcher(log, launcher.pid)
        self._watch = workers.settle(
            status, self._requests.honoured, ended_by, ended_here=self._ends_launcher
        )
        verdict = conclude(outcomes.outcomes(), self._watch, self._recipe, log)
        if workers.untold not in verdict.message:
            say(workers.untold)
        return verdict

    def _until_it_ends(
        self,
        launcher: subprocess.Popen[bytes],
        workers: Workers,
        leader: LeaderWatch,
        log: Path,
        beside: Beside,
    ) -> None:
        """Watch a launcher until it ends, by itself or because the run is over and it does not know.

        Raises:
            RunError: the launch is to be cut short.
        """
        show = follow(log) if self._verbose else None
        over_at: float | None = None
        strays_at = frozen_at = 0.0
        thaw = Thaw(layer_settings.inprocess(self._recipe))
        while launcher.poll() is None:
            time.sleep(_POLL)
            now = time.monotonic()
            if show is not None:
                show()
            killed = (launcher.poll() or 0) < 0 and not self._ends_launcher
            workers.look(launcher_killed=killed, server_killed=beside.killed)
            if beside.look():
                say(f"the fork server hung in its imports and was killed (recovery.start_timeout): see {log}")
            if leader.gone_for() > _FAREWELL:
                raise RunError(
                    "the pod of index 0 was replaced, without a word of the old one; this one has to be, too"
                )
            if os.getppid() != self._parent:
                raise RunError("the process that started this run was killed; the run is stopped")
            self._requests.honour(self._control, now)
            if over_at is None and workers.launch_can_only_end():
                over_at = now
            if over_at is not None and now > over_at + _GRACE:
                self._ends_launcher = True
                _end(launcher, force=now > over_at + 2 * _GRACE)
                if now > over_at + 2 * _GRACE + LONGEST_KILL:
                    say(f"the launcher (process {launcher.pid}) was killed and does not end: storage hangs?")
                    break
            own = launcher, *beside.processes
            if now > frozen_at:
                frozen_at = now + LOOK_EVERY
                starters = [process.pid for process in own]
                thaw.look(self._parent, starters, workers.pids(), workers.monitors())
            if now > strays_at:
                strays_at = now + _STRAYS_EVERY
                children.kill_stray_orphans(*own)
                workers.reaped(children.reap_orphans(*own))
                self._empty_stacks.remove(now)
        if by := beside.killed():  # between the last look and now
            workers.fork_server_killed(by)
        if show is not None:
            show()

    def _await_last_word(self, outcomes: OutcomeReader) -> None:
        """Rank 0 says that the run is done, maybe on another node: its file takes its time on a shared file system."""
        until = time.monotonic() + (_FILE_PATIENCE if self._recipe.cluster.nodes > 1 else 0.0)
        while time.monotonic() < until:
            if any(one.decisive or one.exit_code == ExitCode.DONE for one in outcomes.outcomes()):
                return
            time.sleep(_POLL)

    def _mark_finished(self) -> None:
        try:
            self._folder.mark_finished()
        except OSError as error:
            say(
                f"the run is done, which the next command has to find out: {error.filename}: {error.strerror}"
            )

    def _with_room(self, verdict: Verdict) -> Verdict:
        """A crash for which there may be no record, on a disk that is full: to start again needs room first."""
        if verdict.exit_code != ExitCode.CRASHED:
            return verdict
        error = probe(self._folder.path)
        if error is None or not no_room(error):
            return verdict
        remedy = "make room, then run the same command"
        message = f"{self._folder.path}: {error.strerror}; {remedy} (besides: {verdict.message})"
        return Verdict(int(ExitCode.SAVE_FAILED), message, verdict.traceback)


def _program(launcher: str) -> list[str]:
    """What to start for the launcher that a command names."""
    if Path(launcher).name == "ft_launcher":
        return [sys.executable, "-m", "runner.launch.prompt_launcher"]
    return [launcher]


def _end(launcher: subprocess.Popen[bytes], *, force: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        launcher.send_signal(signal.SIGKILL if force else signal.SIGTERM)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("nvrx-run", "torch", "nvidia-resiliency-ext", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
