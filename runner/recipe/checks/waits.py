"""R12x, R13x: timeouts against the time that steps, saves and loads take.

A rank gives signs of life while it saves or loads, so neither need fit a timeout of hang detection: a hang of storage
itself is what `write_timeout` and `load_timeout` are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.layer_settings import FT_LAUNCHER, INPROCESS, ft_launcher, inprocess
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from runner.recipe.recipe import Recipe


def _outlasts(
    report: Report, path: str, value: timedelta, seconds: float | None, what: str, why: str
) -> None:
    if seconds is not None and value.total_seconds() <= seconds:
        report.add(
            path,
            f"{format_duration(value)} is not above {what} ({seconds:.0f} s): {why}",
            f"raise {path} above {_generous(seconds)}",
            also="checkpoint.storage_bandwidth",
        )


def _generous(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 60 else f"{-(-seconds // 60):.0f}m"


@rule("R120")
def save_fits_write_timeout(recipe: Recipe, report: Report) -> None:
    """`checkpoint.write_timeout` must exceed the time that a checkpoint takes to write.

    The time follows from the model's size and `checkpoint.storage_bandwidth`; without the latter nothing is checked.
    """
    value, seconds = recipe.checkpoint.write_timeout, report.facts.write_seconds
    _outlasts(
        report,
        "checkpoint.write_timeout",
        value,
        seconds,
        "the write of a checkpoint",
        "every save would fail",
    )


@rule("R121")
def load_fits_load_timeout(recipe: Recipe, report: Report) -> None:
    """`checkpoint.load_timeout` must exceed the time that a checkpoint takes to load.

    Reading is taken to be as fast as writing (`checkpoint.storage_bandwidth`).
    """
    value, seconds = recipe.checkpoint.load_timeout, report.facts.write_seconds
    _outlasts(
        report, "checkpoint.load_timeout", value, seconds, "the load of a checkpoint", "no run could resume"
    )


@rule("R126")
def stop_leaves_time_to_save(recipe: Recipe, report: Report) -> None:
    """With ft_launcher, `term_timeout` must exceed the time of a save.

    When the run is asked to stop, the ranks finish the step and save; what is not written when the launcher's patience
    ends is lost with everything since the last checkpoint.
    """
    if s := ft_launcher(recipe):
        why = "a stopped run would be killed before it has saved"
        value, seconds = s.term_timeout, report.facts.write_seconds
        _outlasts(report, FT_LAUNCHER + "term_timeout", value, seconds, "the time of a save", why)


@rule("R129")
def stop_timeout_leaves_time_to_save(recipe: Recipe, report: Report) -> None:
    """`recovery.stop_timeout` must exceed the time of a save.

    A run that is asked to stop finishes its step and saves; past this timeout it is killed, saved or not.
    """
    why = "a stopped run would be killed before it has saved"
    value, seconds = recipe.recovery.stop_timeout, report.facts.write_seconds
    _outlasts(report, "recovery.stop_timeout", value, seconds, "the time of a save", why)


@rule("R131", "warning")
def step_may_look_hung(recipe: Recipe, report: Report) -> None:
    """A step is expected to take longer than the soft timeout or the heartbeat timeout.

    The time of a step is estimated from the model's size and 35 % of the GPUs' peak.
    """
    seconds = report.facts.step_seconds
    s, launcher = inprocess(recipe), ft_launcher(recipe)
    for path, value in (
        (INPROCESS + "soft_timeout", s and s.soft_timeout),
        (FT_LAUNCHER + "rank_heartbeat_timeout", launcher and launcher.rank_heartbeat_timeout),
    ):
        if seconds is not None and value and value.total_seconds() <= seconds:
            report.add(
                path,
                f"{format_duration(value)} is not above the time that a step probably takes ({seconds:.0f} s)",
                f"raise {path} above {_generous(2 * seconds)}, or make training.global_batch_size smaller",
                also="training.global_batch_size",
            )


@rule("R132", "warning")
def stop_signals_differ(recipe: Recipe, report: Report) -> None:
    """`recovery.stop_signals` should name each signal once.

    A signal that is named twice is asked for no more than one that is named once; another one was probably meant.
    """
    signals: tuple[str, ...] = recipe.recovery.stop_signals
    for index, name in enumerate(signals):
        if name in signals[:index]:
            report.add(
                f"recovery.stop_signals[{index}]", f"{name} is there already", "name another, or leave it out"
            )
