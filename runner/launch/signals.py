"""Signals that ask a run to save and stop, from the first moment of the command to its last.

Standard library only.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

# What a recipe may name, and what it names by default; until it is read, these stop a run.
_EARLY = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})


class Stopped(BaseException):
    """A signal asks a run to stop that has not begun. No error: whoever catches those must not catch this."""


def stop_before_start() -> None:
    """Until `hold_back`, a signal that asks a run to stop ends the command: there is nothing to be saved."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    for number in _EARLY:
        signal.signal(number, stop)


def stop_signals(recipe: Recipe) -> frozenset[signal.Signals]:
    """Signals that ask this run to save and stop."""
    return frozenset(signal.Signals[name] for name in recipe.recovery.stop_signals)


def hold_back(signals: frozenset[signal.Signals]) -> None:
    """Keep these signals until somebody listens, so that none is lost; others mean again what they mean elsewhere."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in _EARLY - signals:
        signal.signal(number, signal.SIG_DFL)
