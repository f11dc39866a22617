"""From what workers wrote and the launcher returned to one exit code and one line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.control.outcome import DECISIVE, Outcome, decide
from runner.errors import ExitCode
from runner.faults.records import cause_of, records_of
from runner.launch.watch.death import Death, status_name
from runner.launch.watch.deaths import said_in
from runner.recipe import layer_settings
from runner.recipe.recipe import Recipe

# What launchers say that wanted to join a rendezvous which then ended.
MEETING_OVER = re.compile(
    r"Rendezvous(Closed|Connection)Error|DistNetworkError|DistStoreError|Broken pipe|Connection (reset|refused)"
)
_NAMES_ERROR = re.compile(r"\w(Error|Exception)\b")


@dataclass(frozen=True)
class Verdict:
    """How a launch ended: the product's exit code, a line for the user, a traceback for `--verbose`."""

    exit_code: int
    message: str
    traceback: str = ""


@dataclass
class Watch:
    """What a supervisor has seen of its launch.

    Attributes:
        launcher_status: exit status of the launcher, negative for a signal.
        outside: what was killed that the workers hang on, and ended the launch, or nothing.
        deaths: workers that vanished without a word.
        hopeless: why another start is no use, or nothing.
        window_spent: why restarts came too fast, or nothing.
        budget_spent: whether the launcher has used up its restarts.
        workers_came: whether any worker started.
        all_done: whether the run is done on all ranks of this node, however their processes ended.
        stop_requested: signal that asked to stop.
    """

    launcher_status: int = 0
    outside: str = ""
    deaths: list[Death] = field(default_factory=list)
    hopeless: str = ""
    window_spent: str = ""
    budget_spent: bool = False
    workers_came: bool = False
    all_done: bool = False
    stop_requested: str = ""


def conclude(outcomes: list[Outcome], watch: Watch, recipe: Recipe, log: Path) -> Verdict:
    """The verdict on a launch that has ended."""
    chosen = decide(outcomes)
    if chosen is not None and chosen.spent_by:
        chosen = replace(chosen, message=chosen.message + _last_fault(recipe.run_folder, chosen.spent_by))
    # What ends a launch, and not the run, may follow from the end of its launcher: monitors go with it.
    if chosen is not None and chosen.decisive and (chosen.exit_code in DECISIVE or not watch.outside):
        return Verdict(chosen.exit_code, chosen.message, chosen.traceback)
    if watch.hopeless:
        return Verdict(int(ExitCode.NO_PROGRESS), watch.hopeless)
    if watch.window_spent:
        last = _cause(chosen, watch)
        message = watch.window_spent + (f"; last fault: {last}" if last else "")
        return Verdict(
            int(ExitCode.RESTART_BUDGET_SPENT), message, chosen.traceback if chosen is not None else ""
        )
    said = any(outcome.exit_code == ExitCode.DONE for outcome in outcomes)
    done = said or (watch.all_done and recipe.cluster.nodes == 1)
    if done and (watch.launcher_status == 0 or watch.all_done):
        return Verdict(int(ExitCode.DONE), "finished")
    # A launcher whose workers are done ends well, though it has waited for that of a node where one has failed.
    failed = chosen is not None and chosen.exit_code and layer_settings.ft_launcher(recipe) is None
    if watch.launcher_status == 0 and not failed:
        return Verdict(int(ExitCode.CRASHED), "the workers ended without an error before the run was done")
    what = _cause(chosen, watch)
    if what is None:
        killed = watch.launcher_status < 0
        how = f"was killed ({status_name(watch.launcher_status)})" if killed else "failed"
        what = f"the launcher {how} before any worker started: {_last_line(log)}"
        return Verdict(int(ExitCode.CRASHED), what)
    traceback = chosen.traceback if chosen is not None else ""
    if watch.budget_spent:
        settings = "recovery.ft_launcher.max_restarts"
        message = f"the restarts of the workers are spent ({settings}); last fault: {what}"
        return Verdict(int(ExitCode.RESTART_BUDGET_SPENT), message, traceback)
    return Verdict(int(ExitCode.CRASHED), f"{what}; the same command resumes the run", traceback)


def why_again(outcomes: list[Outcome], deaths: list[Death], restart: int, outside: str = "") -> str:
    """Why a launcher has started its workers again after their start number `restart` (the first: 0).

    Args:
        outcomes: what workers of all starts have said.
        deaths: of all starts.
        restart: the start that ended.
        outside: what was killed that its workers hung on, or nothing.
    """
    chosen = decide([outcome for outcome in outcomes if outcome.restart == restart])
    mine = [death for death in deaths if death.sign.restart == restart]
    return _cause(chosen, Watch(deaths=mine, workers_came=True, outside=outside)) or "a worker failed"


def signal_to_launcher(log: Path, pid: int) -> str:
    """The signal that a launcher says has ended it, or nothing. It ends its workers by the same one first."""
    found = re.findall(rb"Process %d got signal: (\d+)" % pid, said_in(log))
    return status_name(-int(found[-1])) if found else ""


def killed_launcher(status: int) -> str:
    """The fault of a launch whose launcher was killed; its workers died with it."""
    return f"the launcher was killed ({status_name(status)})"


def ended_launcher(signal: str) -> str:
    """The fault of a launch whose launcher was ended by a signal."""
    return f"the launcher was ended by {signal}, and its workers with it"


def _cause(chosen: Outcome | None, watch: Watch) -> str | None:
    if watch.outside and watch.workers_came:
        return watch.outside
    # What a launcher has ended because of another node is named where nothing else is known.
    own = [death for death in watch.deaths if not death.consequence]
    deaths = own or (watch.deaths if chosen is None or not chosen.exit_code else [])
    if deaths and (chosen is None or chosen.consequence or deaths[-1].sign.attempt == chosen.attempt):
        return deaths[-1].account
    if chosen is not None and chosen.exit_code:
        return chosen.message
    if not watch.workers_came:
        return None
    if watch.launcher_status < 0 and not watch.stop_requested:
        return killed_launcher(watch.launcher_status)
    return "a worker failed"


def _last_fault(run_folder: Path, life: str) -> str:
    """What ended a life, as far as it is on record: all ranks have ended, and have said what they know."""
    records = records_of(run_folder, life)
    return f"; last fault: {cause_of(records)}" if records else ""


def _last_line(log: Path) -> str:
    """The last line that names an error, or else the last one: other processes may have written after it."""
    lines = [
        line.strip() for line in said_in(log).decode(errors="replace").splitlines() if line.strip(" =-\t")
    ]
    errors = [line for line in lines if _NAMES_ERROR.search(line)]
    nothing = "it printed nothing" if log.exists() else f"its log was removed ({log})"
    return (errors or lines or [nothing])[-1][:300]
