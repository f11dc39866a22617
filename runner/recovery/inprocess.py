"""In-process restart: NVRx's wrapper around the training function, alone or under ft_launcher.

The order of things when a fault ends a life:
1. the rank that has it raises, or its monitor finds it silent; a record in the wrapper's store tells all ranks;
2. on each rank, in NVRx's monitor thread: `_Freeze` (nothing becomes valid any more), then `_Cut` (collectives and
   store waits raise). NVRx composes from the last to the first, so `_Freeze` is listed last;
3. the monitor thread raises `RankShouldRestart` (a BaseException) in the main thread, at whatever bytecode that is:
   also inside a `finally`, so nothing here relies on one having run;
4. health checks, a barrier of all ranks, and the function is entered again.
"""

# NVRx finds the parameter that takes the CallWrapper by its annotation, which must not be a string:
# no `from __future__ import annotations` in this file.

import gc
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from runner.errors import ExitCode, RunError
from runner.launch.budget import WindowBudget, startup_pause
from runner.launch.control import VERBOSE
from runner.ledger.events import TeardownEnded
from runner.recipe.recovery import CombinedRecovery, InprocessRecovery, InprocessSettings
from runner.recovery import nvrx
from runner.recovery.ending import Ending, Sight, WorkerExit, describe
from runner.recovery.heartbeats import Heartbeats
from runner.recovery.life import Connections, ProcessLife
from runner.recovery.setup import WorkerSetup
from runner.recovery.start_watch import StartHangError
from runner.train.ports import Life


class WrappedLife(ProcessLife):
    """A life inside NVRx's wrapper."""

    call: nvrx.CallWrapper
    heartbeats: Heartbeats | None = None
    last_sign: float = 0.0  # monotonic time of the last heartbeat

    def heartbeat(self, step: int) -> None:
        """This rank has finished `step` and goes on."""
        super().heartbeat(step)
        self.last_sign = time.monotonic()
        self.call.ping()
        if self.heartbeats is not None:
            self.heartbeats.beat()

    def hung_at_start(self, error: StartHangError) -> None:
        """Report it as NVRx's own monitor does: an exception set from here could end up in NVRx's watchdog, whose
        callback runs in the main thread and swallows it."""
        self.start_hang = error
        nvrx.report_hang(self.call)

    def atomic(self) -> AbstractContextManager[Any]:
        """A section that a restart waits for."""
        return self.call.atomic()


class _Freeze(nvrx.Abort):
    """Ends the current life: hooks run, the fault is recorded."""

    def __init__(self, layer: "InprocessLayer") -> None:
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        self.layer.freeze()
        return state


class _Cut(nvrx.Abort):
    """Makes blocked collectives and store waits raise, and destroys the process groups."""

    def __init__(self, layer: "InprocessLayer") -> None:
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        life = self.layer.life
        if life is not None:
            life.cut(gloo=not self.layer.setup.gpus)
        if self.layer.setup.gpus:
            return nvrx.AbortTorchDistributed()(state)
        if dist.is_initialized():
            dist.destroy_process_group()
        return state


class _Budget(nvrx.RetryController):
    """NVRx's retry controller, which also says which of its limits ended the run."""

    def __init__(self, layer: "InprocessLayer", **limits: Any) -> None:
        super().__init__(**limits)
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        try:
            return super().__call__(state)
        except nvrx.RestartAbort:
            self.layer.out_of_budget(state)
            raise


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
        self._heartbeats: Heartbeats | None = None
        self._base_attempt = ""
        self._min_world = self.settings.min_world_size or setup.facts.world_size
        self._window = WindowBudget(self.settings.window, "recovery.inprocess.window")
        self._fruitless = 0  # lives in a row without a finished step
        self._counter = nvrx.FaultCounter(
            max_rank_faults=self.settings.max_rank_faults or self.settings.max_restarts
        )

    def run(self) -> Ending | None:
        """Run to the end. Returns how it ended where it did not finish."""
        self._meeting = self.setup.meet()
        gc.collect()
        gc.freeze()  # NVRx collects garbage before each restart: what is imported by now need not be looked at again
        one_life = self.wrapper()(self._one_life_function())
        try:
            one_life()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - NVRx ends in BaseExceptions of its own; all are judged
            return self._gave_up(error)
        finally:
            self._close_heartbeats()
        assert self.life is not None
        self.setup.life_finished(self.life)
        return None

    def wrapper(self) -> Any:
        """NVRx's wrapper with the recipe's settings."""
        s = self.settings
        return nvrx.make_wrapper(
            gpus=self.setup.gpus,
            checks=s.health_checks,
            local_rank=self.setup.facts.local_rank,
            counter=self._counter,
            store_factory=nvrx.WrapperStore,
            store_kwargs={
                "host_name": self._meeting.address,
                "port": self._meeting.port,
                "wait_for_workers": False,
                "timeout": self.setup.recipe.recovery.rendezvous_timeout,
            },
            initialize=_Budget(
                self,
                max_iterations=s.max_restarts + 1,
                min_world_size=self._min_world,
                min_active_world_size=self._min_world,
            ),
            abort=nvrx.Compose(_Cut(self), _Freeze(self)),
            rank_assignment=nvrx.Compose(nvrx.ActivateAllRanks(), nvrx.ShiftRanks()),
            monitor_thread_interval=s.monitor_interval,
            monitor_process_interval=s.monitor_interval,
            progress_watchdog_interval=s.monitor_interval,
            heartbeat_interval=s.heartbeat_interval,
            heartbeat_timeout=s.heartbeat_timeout,
            soft_timeout=s.soft_timeout,
            hard_timeout=s.hard_timeout,
            barrier_timeout=s.barrier_timeout,
            completion_timeout=s.completion_timeout,
            last_call_wait=s.last_call_wait,
            termination_grace_time=s.termination_grace,
            monitor_process_logfile=self._monitor_log(),
        )

    def _monitor_log(self) -> str | None:
        """Where NVRx's monitor process says what it sees: with --verbose only, a file for each worker process."""
        if os.environ.get(VERBOSE) != "1":
            return None
        return str(self.setup.run_folder / "logs" / f"monitor-{os.getpid()}-rank-{{rank}}.log")

    def _one_life_function(self) -> Callable[[], None]:
        def one_life(call: nvrx.CallWrapper = None) -> None:
            self._one_life(call)

        return one_life

    def _one_life(self, call: nvrx.CallWrapper) -> None:
        setup = self.setup
        self._close_heartbeats()
        if self.life is not None:
            setup.ledger.record(TeardownEnded())
            self._fruitless = 0 if self.life.progressed else self._fruitless + 1
            self.life = None
            self._window.restarted(time.monotonic())
        setup.pause_before_start(
            startup_pause(self.settings.startup_backoff.total_seconds(), self._fruitless), call.ping
        )
        heartbeats = self._heartbeats = setup.open_heartbeats()
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
        )
        life.call = call
        life.heartbeats = heartbeats
        life.last_sign = time.monotonic()
        self.life = life
        setup.life_started(life, iteration=call.iteration)
        try:
            self._check_window(life)
            self._train(life)
            life.leave()
        except SystemExit as error:
            self._failed(life, WorkerExit(f"sys.exit({error.code!r}) during training"))
        except Exception as error:  # noqa: BLE001 - judged, recorded and raised to NVRx
            self._failed(life, error)
        except BaseException:  # NVRx's interruption has reached this thread: it does not hang any more
            setup.presence.started()
            raise

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
        if isinstance(error, RestartsSpentError):
            ending = Ending(int(error.exit_code), str(error), final=True)
        else:
            ending = self.setup.coroner.exception(life, error)
        life.end(describe(error))
        self.setup.life_failed(life, ending)
        if ending.final:
            self.ending = ending
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
        silent, sight = time.monotonic() - life.last_sign, Sight.now()
        hung = silent > 0.8 * self.settings.soft_timeout.total_seconds() and not sight.waits_for_peers
        reason = f"no progress for {silent:.1f}s" if hung else "a fault on another rank"
        if life.start_hang is not None:
            hung, reason, sight = True, str(life.start_hang), life.start_hang.sight
        if life.end(reason):
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
            self.ending = Ending(int(code), what, final=not self.combined)
        else:
            what = f"{state.world_size} of {self.setup.facts.world_size} ranks are left, {self._min_world} are needed"
            self.ending = Ending(int(ExitCode.CRASHED), what, final=False, consequence=True)

    def _gave_up(self, error: BaseException) -> Ending | None:
        if self.ending is None:
            if self._given_up():
                if self._min_world < self.setup.facts.world_size:
                    return None  # the others go on without this rank; a launcher would stop them for a failed worker
                limit = self._counter.max_rank_faults
                what = f"more than {limit} faults on this rank (recovery.inprocess.max_rank_faults)"
                code = ExitCode.CRASHED if self.combined else ExitCode.RESTART_BUDGET_SPENT
                self.ending = Ending(int(code), what, final=not self.combined)
            else:
                self.ending = Ending(int(ExitCode.CRASHED), describe(error), final=False, consequence=True)
        self.setup.coroner.conclude(self.life or self.setup.facts.rank, self.ending)
        return self.ending

    def _given_up(self) -> bool:
        limit = self._counter.max_rank_faults
        return limit is not None and self._counter.faults_count > limit

    def _close_heartbeats(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.close()
