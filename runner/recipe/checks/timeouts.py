"""R1xx: the ladder of timeouts. Whoever is to act first must be the first to run out of patience."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.recipe.checks.rule import Report, rule
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from runner.recipe.recipe import Recipe

_IN = "recovery.inprocess."


def inprocess(recipe: Recipe) -> Any:
    """In-process settings, where the layer has them."""
    return getattr(recipe.recovery, "inprocess", None)


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
    """`hard_timeout` exceeds `soft_timeout`."""
    if s := inprocess(recipe):
        why = "a rank would be killed before it is interrupted"
        _above(report, _IN + "hard_timeout", s.hard_timeout, _IN + "soft_timeout", s.soft_timeout, why)


@rule("R102")
def hard_below_barrier(recipe: Recipe, report: Report) -> None:
    """`barrier_timeout` exceeds `hard_timeout`."""
    if s := inprocess(recipe):
        why = "the restart would be given up while a hung rank is still being killed"
        _above(report, _IN + "barrier_timeout", s.barrier_timeout, _IN + "hard_timeout", s.hard_timeout, why)


@rule("R103")
def hard_below_process_group(recipe: Recipe, report: Report) -> None:
    """`process_group_timeout` exceeds the in-process `hard_timeout`."""
    if s := inprocess(recipe):
        watchdog = recipe.recovery.process_group_timeout
        why = "the NCCL watchdog would kill the process before the in-process restart acts"
        _above(report, "recovery.process_group_timeout", watchdog, _IN + "hard_timeout", s.hard_timeout, why)
