"""In-process restart: the lives of one worker process, alone or under ft_launcher, and what the end of each means.

How a fault ends a life is in `wrapped`, which plugs this into NVRx's wrapper.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler

from runner.errors import ExitCode, MonitorGoneError, RunError
from runner.faults.records import cause_of, records_of
from runner.launch.budget import WindowBudget, startup_pause
from runner.ledger.events import TeardownEnded
from runner.recipe.recovery import CombinedRecovery, InprocessRecovery, InprocessSettings
from runner.recovery import nvrx
from runner.recovery.awake import wake_gpu
from runner.recovery.ending import Ending, Sight, WorkerExit, describe
from runner.recovery.heartbeats import Heartbeats
from runner.recovery.life import Connections
from runner.recovery.setup import WorkerSetup
from runner.recovery.wrapped import WrappedLife, wrap
from runner.train.ports import Life


class RestartsSpentError(RunError):
    """No further restart in place: they came too fast."""


class InprocessLayer:
    """Runs the training function in NVRx's wrapper, in one worker process."""

    def __init__(self, setup: WorkerSetup, train: Callable[[Life], None]) -> None:
        recovery = setup.recipe.recovery
        assert isinstance(recovery, InprocessRecovery | CombinedRecovery)
        self.setup = setup
        self.settings: InprocessSettings = recovery.inprocess
        self.combined = isinstance(recovery, CombinedRecovery)
        self.life: WrappedLife | None = None
        self.ending: Ending | None = None
        self._train = train
        self._training = False  # whether it runs
        self._heartbeats: Heartbeats | None = None
        self._concluded = False  # whether all ranks have returned, and this one has said how it ended
        self._base_attempt = ""
        self._min_world = self.settings.min_world_size or setup.facts.world_size
        self._window = WindowBudget(self.settings.window, "recovery.inprocess.window")
        self._fruitless = 0  # lives in a row without a finished step
        self._last_failed = ""  # the life before this one
        self._counter = nvrx.FaultCounter(
            max_rank_faults=self.settings.max_rank_faults or self.settings.max_restarts
        )

    def run(self) -> Ending | None:
        """Run to the end. Returns how it ended where it did not finish."""
        setup = self.setup
        self._meeting = setup.meet()
        if setup.facts.rank != 0:  # which serves NVRx's store
            self._meeting.await_server(setup.recipe.recovery.rendezvous_timeout)
        gc.collect()
        gc.freeze()  # NVRx collects garbage before each restart: what is imported by now need not be looked at again
        if setup.recipe.dataset.workers:
            _set_SIGCHLD_handler()  # torch's, which raises where a data worker has died; it sets that only once
            nvrx.spare_watchdog(signal.SIGCHLD)
        lives = wrap(
            self, setup, self.settings, self._meeting, counter=self._counter, min_world=self._min_world
        )
        # Until NVRx's monitor process is there nobody watches this one, which waits for it without a limit.
        setup.presence.starting("monitor", setup.recipe.recovery.start_timeout.total_seconds())
        handler = signal.signal(signal.SIGINT, self._interrupt)
        try:
            lives()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - NVRx ends in BaseExceptions of its own; all are judged
            if not self._concluded:
                return self._gave_up(error)
            assert self.life is not None
            setup.failed_after_all(self.life, error)
        finally:
            signal.signal(signal.SIGINT, handler)
            self._close_heartbeats()
        assert self.life is not None
        if not self._concluded:  # what was raised in the first attempt has been lost in NVRx
            self.finished()
        setup.leave(self.life)
        return self.ending

    def finished(self) -> None:
        """All ranks have returned from their life: the run is done, or has stopped. See `wrapped.Layer`."""
        assert self.life is not None
        self._close_heartbeats()  # and their alarm, which is followed by that of the end
        if self.ending is None:
            self.setup.life_finished(self.life)
        else:
            self.setup.coroner.conclude(self.life, self.ending)
        self._concluded = True

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """SIGINT breaks into the training function and nothing else: between two lives it would end NVRx's wrapper."""
        if self._training:
            raise KeyboardInterrupt

    def enter(self, call: nvrx.CallWrapper) -> None:
        """One life, from the pause before it to its end. See `wrapped.Layer`."""
        setup = self.setup
        if self.ending is not None:  # the ranks had agreed to stop, and one of them had a fault after all
            raise nvrx.RestartAbort(self.ending.message)
        if call.iteration == 0:
            setup.presence.monitored(nvrx.monitor_process(call, before_end=setup.presence.unmonitored))
            if setup.gpus:
                wake_gpu(setup.facts.local_rank)
        self._close_heartbeats()
        if self.life is not None:
            setup.ledger.record(TeardownEnded())
            self._fruitless = 0 if self.life.progressed else self._fruitless + 1
            self._last_failed = self.life.attempt
            self.life = None
            self._window.restarted(time.monotonic())
        setup.pause_before_start(
            startup_pause(self.settings.startup_backoff.total_seconds(), self._fruitless), call.ping
        )
        try:
            heartbeats = self._heartbeats = setup.open_heartbeats()
        except MonitorGoneError as error:
            self.ending = setup.coroner.monitor_gone(error, setup.facts.rank)
            raise nvrx.RestartAbort(str(error)) from error
        connections = Connections(self._meeting, serve=False, timeout=setup.group_timeout)
        if not self._base_attempt:
            self._base_attempt = setup.agree_attempt(connections.control)
        state = call.state
        life = WrappedLife(
            rank=state.active_rank,
            world_size=state.active_world_size,
            facts=setup.facts,
            attempt=f"{self._base_attempt}-{call.iteration}",
            in_process=call.iteration > 0,
            connections=connections,
            group_timeout=setup.group_timeout,
            ledger=setup.ledger,
            layer=setup.layer,
            presence=setup.presence,
            start_watch=setup.start_watch,
            first_step=setup.recipe.recovery.start_timeout,
            heartbeats=heartbeats,
        )
        life.call = call
        life.last_sign = time.monotonic()
        self.life = life
        setup.life_started(life, iteration=call.iteration)
        if life.in_process and life.rank == 0:
            self._tell_restart(call.iteration)
        try:
            self._check_window(life)
            self._training = True
            try:
                self._train(life)
            finally:
                self._training = False
        except SystemExit as error:
            self._failed(life, WorkerExit(f"sys.exit({error.code!r}) during training"))
        except KeyboardInterrupt:  # else it would be ended while it ends, and seem to have died of that
            self._failed(life, WorkerExit("SIGINT during training"))
        except Exception as error:  # noqa: BLE001 - judged, recorded and raised to NVRx
            self._failed(life, error)
        except BaseException:  # NVRx's interruption has reached this thread: it does not hang any more
            setup.presence.started()
            raise

    def _tell_restart(self, number: int) -> None:
        """Say what made this restart necessary: all ranks have met since, and have said what they know."""
        records = records_of(self.setup.run_folder, self._last_failed)
        what = str(cause_of(records)) if records else "a fault that is not on record"
        self.setup.log.warning(
            "restart in process", fault=what, restart=number, of=self.settings.max_restarts
        )

    def _check_window(self, life: WrappedLife) -> None:
        """Stop where restarts came too fast. Rank 0 judges for all: each rank saw them at times of its own."""
        if self.settings.window is None or not life.in_process:
            return
        if life.rank == 0:
            life.store.set("window", self._window.spent(time.monotonic()))
        life.store.wait(["window"], self.setup.group_timeout)
        if spent := life.store.get("window").decode():
            code = ExitCode.CRASHED if self.combined else ExitCode.RESTART_BUDGET_SPENT
            raise RestartsSpentError(spent, code)

    def _failed(self, life: WrappedLife, error: Exception) -> None:
        life.failing()
        if isinstance(error, RestartsSpentError):
            ending = Ending(int(error.exit_code), str(error), final=True, spent_by=self._last_failed)
        else:
            ending = self.setup.coroner.exception(life, error)
        life.end(describe(error), own=not ending.consequence)
        self.setup.life_failed(life, ending)
        if ending.final:
            self.ending = ending
            if ending.exit_code == ExitCode.PREEMPTED:
                # All ranks stop after the same step: NVRx takes it for the function's end, and waits for the others. An
                # abort would interrupt those that are a moment behind.
                return
            raise nvrx.RestartAbort(ending.message) from error
        if ending.consequence:
            self._await_interruption()
        raise error

    def _await_interruption(self) -> None:
        """Let NVRx's own interruption arrive, so that its fault counter does not blame this rank.

        It is under way: the rank that has the fault reported it before its sockets were shut down here. Where none
        comes (a network that failed by itself), this rank reports the fault after all.
        """
        s = self.settings
        deadline = time.monotonic() + (4 * s.monitor_interval + s.last_call_wait).total_seconds() + 1.0
        while time.monotonic() < deadline:
            time.sleep(0.005)

    def freeze(self) -> None:
        """End the current life from NVRx's monitor thread, ahead of the abort of collectives."""
        life = self.life
        if life is None:
            return
        silent, sight = life.silent(), Sight.now()
        no_progress = silent > 0.8 * self.settings.soft_timeout.total_seconds()
        hung = no_progress and not life.fails and not sight.waits_for_peers
        reason = f"no progress for {silent:.1f}s" if no_progress else "a fault on another rank"
        if no_progress and not hung:  # a peer hangs; or none does, and all of them wait in a collective
            reason += ", waiting for its peers"
        elif hung and sight.waits_for_data:
            reason += ", waiting for a data worker"
        if life.start_hang is not None:
            hung, reason, sight = True, str(life.start_hang), life.start_hang.sight
        if life.end(reason, own=hung):
            self.setup.coroner.interrupted(life, reason, sight, hung=hung)
        if self.setup.gpus:
            self.setup.coroner.flight_recorder(life.attempt, life.rank)

    def out_of_budget(self, state: Any) -> None:
        """NVRx's retry controller refuses another life."""
        if self.ending is not None:
            return
        if state.iteration > self.settings.max_restarts:
            code = ExitCode.CRASHED if self.combined else ExitCode.RESTART_BUDGET_SPENT
            what = f"{self.settings.max_restarts} in-process restarts are spent (recovery.inprocess.max_restarts)"
            self.ending = Ending(int(code), what, final=not self.combined, spent_by=self._failed_life)
        else:
            what = f"{state.world_size} of {self.setup.facts.world_size} ranks are left, {self._min_world} are needed"
            self.ending = Ending(int(ExitCode.CRASHED), what, final=False, consequence=True)

    def _gave_up(self, error: BaseException) -> Ending | None:
        if self.ending is None:
            if self._given_up():
                if self._min_world < self.setup.facts.world_size:
                    return None  # the others go on without this rank; a launcher would stop them for a failed worker
                limit = self._counter.max_rank_faults
                what = f"rank {self.setup.facts.rank} had more than {limit} faults (recovery.inprocess.max_rank_faults)"
                code = ExitCode.CRASHED if self.combined else ExitCode.RESTART_BUDGET_SPENT
                self.ending = Ending(int(code), what, final=not self.combined, spent_by=self._failed_life)
            else:
                what = f"rank {self.setup.facts.rank} cannot restart in process: {describe(error)}"
                self.ending = Ending(int(ExitCode.CRASHED), what, final=False, consequence=True)
        self.setup.coroner.conclude(self.life or self.setup.facts.rank, self.ending)
        return self.ending

    @property
    def _failed_life(self) -> str:
        """The life whose fault there is no restart for."""
        return self.life.attempt if self.life is not None else self._last_failed

    def _given_up(self) -> bool:
        limit = self._counter.max_rank_faults
        return limit is not None and self._counter.faults_count > limit

    def _close_heartbeats(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.close()
