"""The Hugging Face hub: its failures as a sentence, and patience with those that pass."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from runner.errors import BusyError, InputError
from runner.streams import complain

T = TypeVar("T")
_ATTEMPTS = 8
_FIRST_PAUSE = 4.0  # seconds; doubled each time, with up to half as much again at random
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def _say(line: str) -> None:
    complain(f"nvrx-data: {line}")


@contextmanager
def hub_errors(what: str, name: str) -> Iterator[None]:
    """Turn the hub's and the loaders' errors about `name` into one line.

    Raises:
        InputError: the thing does not exist, is not allowed, or cannot be reached.
        BusyError: the hub turns requests away for the moment, or there is no connection.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
    ) as error:  # what transformers, datasets and their HTTP client raise
        if _is_path(name) and not Path(name).exists():  # what the hub's client says of it is about ids
            raise InputError(
                f"{what} {name!r} cannot be loaded: there is no such folder; correct it, or bring the folder there"
            ) from error
        passing = _transient(error)
        if passing is not None:
            raise BusyError(
                f"{what} {name!r} cannot be loaded: {passing}; the same command may do later"
            ) from error
        reason = " ".join(str(error).split()).rstrip(".")
        if len(reason) > 300:
            reason = reason[:297] + "..."
        raise InputError(
            f"{what} {name!r} cannot be loaded: {reason or type(error).__name__}. "
            "Give a folder that exists, or an id that the hub knows and can be asked about (HF_TOKEN where it is gated)"
        ) from error


def _is_path(name: str) -> bool:
    """Whether a name can only be meant as a place in the file system: ids are `name` or `owner/name`."""
    return name.startswith(("/", "./", "../", "~")) or name.count("/") > 1


def with_backoff(
    fetch: Callable[[], T],
    *,
    attempts: int = _ATTEMPTS,
    within: float = math.inf,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = _say,
) -> T:
    """Call `fetch` until it succeeds, waiting longer each time where the other side is busy or away for a moment.

    Args:
        within: seconds after which no other attempt begins.
        say: takes a line before each wait.

    Raises:
        InputError: what is asked for does not exist or is not allowed: asking again would not help.
        BusyError: the other side is still busy after the last attempt (exit code 1: another try later may succeed).
    """
    pause, end = _FIRST_PAUSE, time.monotonic() + within
    for attempt in itertools.count(1):
        try:
            return fetch()
        except BusyError as error:
            wait = pause * (1 + random.random() / 2)  # others who were turned away come back at other times
            if attempt >= attempts or time.monotonic() + wait > end:
                raise BusyError(f"{error} ({attempt} attempts)") from error
            say(f"{error}; attempt {attempt + 1} of {attempts} in {wait:.0f} s")
            sleep(wait)
            pause *= 2
    raise AssertionError  # pragma: no cover - the loop has no end


def _transient(error: BaseException) -> str | None:
    """What is wrong for the moment, from the causes of an error; None where it is wrong for good."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "OfflineModeIsEnabled":  # of the hub's client: nothing was asked
            return None
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status in _TRANSIENT:
            return f"the hub answers {status}"
        if status is not None:
            return None
        if isinstance(cause, ConnectionError | TimeoutError):
            return f"no connection ({cause})"
        cause = cause.__cause__ or cause.__context__
    return None
