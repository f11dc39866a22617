"""Signals that ask a run to save and stop, from the first moment of the command to its last.

Imports next to nothing: the command imports this before anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from runner.errors import RunError
from runner.streams import complain

if TYPE_CHECKING:
    from runner.control.channel import Control
    from runner.recipe.recipe import Recipe

Handler = Callable[[int, FrameType | None], Any] | int | None

# What a recipe may name, and what it names by default; until it is read, these stop a run.
_EARLY = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})

_SAME_SIGNAL = 1.0  # seconds in which a signal to all processes has reached the other one, too
_RESUME = "the same command goes on from the last checkpoint"


class Stopped(BaseException):
    """A signal asks a run to stop that has not begun. No error: whoever catches those must not catch this."""


@contextlib.contextmanager
def stop_before_start() -> Iterator[None]:
    """Until `hold_back`, a signal that asks a run to stop ends the command: there is nothing to be saved.

    Where the run is refused in here, the signals mean again what they meant before; else `hold_back` takes over.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    former = {number: signal.signal(number, stop) for number in _EARLY}
    try:
        yield
    except BaseException:
        put_back(former)
        raise


def put_back(handlers: Mapping[signal.Signals, Handler]) -> None:
    """Install again the handlers that `signal.signal` returned when others took their place."""
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not one of Python's


def stop_signals(recipe: Recipe) -> frozenset[signal.Signals]:
    """Signals that ask this run to save and stop.

    Beside those of the recipe that of a terminal which is closed, unless `nohup` has the command ignore it: it reaches
    both processes of the command, and if it ended them, nobody would clear up behind the run.
    """
    named = frozenset(signal.Signals[name] for name in recipe.recovery.stop_signals)
    return named if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else named | {signal.SIGHUP}


def hold_back(signals: frozenset[signal.Signals]) -> None:
    """Keep these signals until somebody listens, so that none is lost; others mean again what they mean elsewhere."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in _EARLY - signals:
        signal.signal(number, signal.SIG_DFL)


def ignore_job_control() -> None:
    """For a supervisor: Ctrl-Z reaches it with the command at the terminal, and what it watches goes on without it.

    No handler is left to what it starts. Nor may a terminal that stops background output (`stty tostop`) stop it.
    """

    def told(_number: int, _frame: FrameType | None) -> None:
        complain(
            "nvrx-run: SIGTSTP: training goes on in the background, since ranks that pause are taken for hanging; "
            "`fg` brings the command back, and Ctrl-C or SIGTERM saves and stops"
        )

    signal.signal(signal.SIGTSTP, told)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)


class StopRequests:
    """The signals that ask to stop, as the command's first process has counted them; true once there is one.

    A terminal's Ctrl-C, `scancel`, systemd and `pkill` signal all processes of a command. So only the first one's
    signals count: those that reach this process as well are the same ones again, not a second wish.

    Args:
        recipe: says which signals ask to stop, and how long the workers may take for it.
        relay: file descriptor, non-blocking, from which the first process' signals are read, a byte each.

    Attributes:
        honoured: name of the signal that the workers were told of; empty before.
    """

    def __init__(self, recipe: Recipe, relay: int) -> None:
        self.honoured = ""
        self._signals = stop_signals(recipe)
        self._patience = recipe.recovery.stop_timeout.total_seconds()
        self._relay = relay
        self._received: list[int] = []
        self._own: tuple[int, float] | None = None
        self._until = 0.0

    def __bool__(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._received += os.read(self._relay, 64)
        # Somebody may also have signalled this process and no other.
        if not self._received and self._own is not None and time.monotonic() - self._own[1] > _SAME_SIGNAL:
            self._received.append(self._own[0])
        return bool(self._received)

    def listen(self) -> None:
        """Receive what was held back, and all that comes."""

        def received(number: int, _frame: FrameType | None) -> None:
            self._own = self._own or (number, time.monotonic())

        for number in self._signals:
            signal.signal(number, received)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

    def honour(self, control: Control, now: float) -> None:
        """Tell the workers of the first request; called again and again, until they have ended.

        Args:
            control: what the workers look at.
            now: monotonic time, seconds.

        Raises:
            RunError: there was a second request, or the workers have had their time.
        """
        if not self:
            return
        name = signal.Signals(self._received[0]).name
        if len(self._received) > 1:
            raise RunError(f"stopped at once on a second signal; {_RESUME}")
        if not self.honoured:
            control.request_stop(name)
            complain(f"nvrx-run: {name}: saving and stopping after this step (a second signal stops at once)")
            self.honoured, self._until = name, now + self._patience
        elif now > self._until:
            raise RunError(
                f"did not stop within {self._patience:.0f} s of {name} (recovery.stop_timeout); {_RESUME}"
            )
