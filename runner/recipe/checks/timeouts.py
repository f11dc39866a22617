"""R1xx: the ladder of timeouts. Whoever is to act first must be the first to run out of patience."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.layer_settings import FT_LAUNCHER, INPROCESS, ft_launcher, inprocess
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_PG = "recovery.process_group_timeout"


def _above(
    report: Report, high: str, high_value: timedelta, low: str, low_value: timedelta, why: str
) -> None:
    if high_value <= low_value:
        report.add(
            high,
            f"{format_duration(high_value)} is not above {low} ({format_duration(low_value)}): {why}",
            f"raise {high} above {format_duration(low_value)}, or lower {low}",
            also=low,
        )


@rule("R101")
def soft_below_hard(recipe: Recipe, report: Report) -> None:
    """The in-process `hard_timeout` must exceed `soft_timeout`.

    The soft timeout interrupts a rank that makes no progress, so that it can restart in place; the hard timeout kills
    one that ignored the interruption. In the wrong order every hang costs a process. NVRx refuses it too, but only
    once all ranks have started.
    """
    if s := inprocess(recipe):
        why = "a rank would be killed before it is interrupted"
        _above(
            report,
            INPROCESS + "hard_timeout",
            s.hard_timeout,
            INPROCESS + "soft_timeout",
            s.soft_timeout,
            why,
        )


@rule("R102")
def hard_below_barrier(recipe: Recipe, report: Report) -> None:
    """The in-process `barrier_timeout` must exceed `hard_timeout`.

    At a restart the healthy ranks wait at a barrier for the others. A rank that hangs arrives only after it has been
    interrupted or killed, so the barrier must outlast the hard timeout.
    """
    if s := inprocess(recipe):
        why = "the restart would be given up while a hung rank is still being killed"
        _above(
            report,
            INPROCESS + "barrier_timeout",
            s.barrier_timeout,
            INPROCESS + "hard_timeout",
            s.hard_timeout,
            why,
        )


@rule("R103")
def hard_below_process_group(recipe: Recipe, report: Report) -> None:
    """`process_group_timeout` must exceed the in-process `hard_timeout`.

    The process group's timeout arms the NCCL watchdog, which ends the process. Below the hard timeout it kills the
    ranks that wait in a collective for a hung peer, before in-process restart has mended anything. On CPUs gloo raises
    an error in them instead, no less too soon.
    """
    if s := inprocess(recipe):
        watchdog = recipe.recovery.process_group_timeout
        why = (
            "collectives would fail on gloo's own timeout before the in-process restart acts"
            if report.facts.on_gpus is False
            else "the NCCL watchdog would kill the process before the in-process restart acts"
        )
        _above(report, _PG, watchdog, INPROCESS + "hard_timeout", s.hard_timeout, why)


@rule("R104")
def interval_below_heartbeat(recipe: Recipe, report: Report) -> None:
    """The in-process `heartbeat_timeout` must exceed `heartbeat_interval`.

    A process whose monitor thread reports less often than it is expected to counts as lost while it is healthy.
    """
    if s := inprocess(recipe):
        why = "healthy processes would count as lost"
        high, low = INPROCESS + "heartbeat_timeout", INPROCESS + "heartbeat_interval"
        _above(report, high, s.heartbeat_timeout, low, s.heartbeat_interval, why)


@rule("R105")
def heartbeat_below_barrier(recipe: Recipe, report: Report) -> None:
    """The in-process `barrier_timeout` must exceed `heartbeat_timeout`.

    A process that died leaves the barrier one short until its missing heartbeat is noticed.
    """
    if s := inprocess(recipe):
        why = "the restart would be given up before a dead process is noticed"
        high, low = INPROCESS + "barrier_timeout", INPROCESS + "heartbeat_timeout"
        _above(report, high, s.barrier_timeout, low, s.heartbeat_timeout, why)


@rule("R106")
def monitor_below_timeouts(recipe: Recipe, report: Report) -> None:
    """The in-process `monitor_interval` must lie below `soft_timeout` and `heartbeat_timeout`.

    The monitors look for faults once an interval; a timeout shorter than that cannot be kept.
    """
    if s := inprocess(recipe):
        for name in ("soft_timeout", "heartbeat_timeout"):
            why = "it cannot be noticed in time"
            _above(
                report,
                INPROCESS + name,
                getattr(s, name),
                INPROCESS + "monitor_interval",
                s.monitor_interval,
                why,
            )


@rule("R107")
def last_call_below_barrier(recipe: Recipe, report: Report) -> None:
    """The in-process `barrier_timeout` must exceed `last_call_wait` and `termination_grace`.

    Both pass while the others already wait at the barrier.
    """
    if s := inprocess(recipe):
        for name in ("last_call_wait", "termination_grace"):
            why = "the others would have given up waiting"
            _above(
                report,
                INPROCESS + "barrier_timeout",
                s.barrier_timeout,
                INPROCESS + name,
                getattr(s, name),
                why,
            )


@rule("R110")
def initial_heartbeat_covers_heartbeat(recipe: Recipe, report: Report) -> None:
    """ft_launcher's `initial_rank_heartbeat_timeout` must not be below `rank_heartbeat_timeout`.

    The first heartbeat comes after imports, the load of a checkpoint and perhaps a compilation: it takes longer than
    any later one.
    """
    if s := ft_launcher(recipe):
        high, low = s.initial_rank_heartbeat_timeout, s.rank_heartbeat_timeout
        if high < low:
            report.add(
                FT_LAUNCHER + "initial_rank_heartbeat_timeout",
                f"{format_duration(high)} is below {FT_LAUNCHER}rank_heartbeat_timeout ({format_duration(low)}): "
                "the first heartbeat takes longest",
                f"raise it to at least {format_duration(low)}",
                also=FT_LAUNCHER + "rank_heartbeat_timeout",
            )


@rule("R111")
def heartbeat_outlasts_inprocess(recipe: Recipe, report: Report) -> None:
    """With both layers, `rank_heartbeat_timeout` must exceed the in-process `hard_timeout`.

    A rank that hangs sends no heartbeat while in-process restart deals with it. If the launcher runs out of patience
    first, it respawns every worker for a fault that would have been mended in place.
    """
    s, launcher = inprocess(recipe), ft_launcher(recipe)
    if s and launcher:
        why = "the launcher would respawn workers that in-process restart is about to mend"
        high, low = FT_LAUNCHER + "rank_heartbeat_timeout", INPROCESS + "hard_timeout"
        _above(report, high, launcher.rank_heartbeat_timeout, low, s.hard_timeout, why)


@rule("R112")
def check_below_heartbeat(recipe: Recipe, report: Report) -> None:
    """`rank_heartbeat_timeout` must exceed `workload_check_interval`.

    Heartbeats are looked at once an interval; a timeout shorter than that cannot be kept.
    """
    if s := ft_launcher(recipe):
        why = "it cannot be noticed in time"
        high, low = FT_LAUNCHER + "rank_heartbeat_timeout", FT_LAUNCHER + "workload_check_interval"
        _above(report, high, s.rank_heartbeat_timeout, low, s.workload_check_interval, why)


@rule("R113")
def start_below_rendezvous(recipe: Recipe, report: Report) -> None:
    """`rendezvous_timeout` must exceed `start_timeout`.

    A rank that has done its imports waits for those that have not, for as long as the rendezvous may take. In the wrong
    order the healthy rank gives up first, and the one that hangs is never named.
    """
    high, low = recipe.recovery.rendezvous_timeout, recipe.recovery.start_timeout
    why = "healthy ranks would give up before the one that hangs is stopped"
    _above(report, "recovery.rendezvous_timeout", high, "recovery.start_timeout", low, why)


@rule("R114")
def start_below_initial_heartbeat(recipe: Recipe, report: Report) -> None:
    """ft_launcher's `initial_rank_heartbeat_timeout` must exceed `start_timeout`.

    Before the first heartbeat the launcher knows only that all ranks are silent, and kills whichever it looks at first.
    A rank that hangs in its start-up must have been stopped, and its stacks kept, by then.
    """
    if s := ft_launcher(recipe):
        high, low = FT_LAUNCHER + "initial_rank_heartbeat_timeout", "recovery.start_timeout"
        why = "the launcher would kill any rank before the one that hangs is known"
        _above(report, high, s.initial_rank_heartbeat_timeout, low, recipe.recovery.start_timeout, why)


@rule("R128")
def grace_covers_launcher(recipe: Recipe, report: Report) -> None:
    """`cluster.kubernetes.grace_period` must exceed ft_launcher's `term_timeout`.

    Else the kubelet kills the launcher while it still waits for its workers, whose exit code is lost.
    """
    kubernetes, s = recipe.cluster.kubernetes, ft_launcher(recipe)
    if kubernetes is not None and kubernetes.grace_period is not None and s:
        why = "the pod would be killed while the launcher still waits for its workers"
        path = "cluster.kubernetes.grace_period"
        _above(report, path, kubernetes.grace_period, FT_LAUNCHER + "term_timeout", s.term_timeout, why)
