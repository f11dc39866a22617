"""Fixtures that several rooms share."""

from __future__ import annotations

import compileall
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.launch.signals import Handler, put_back
from runner.system.network import ReservedPort

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nvrx_releases.py serves several rooms


def pytest_sessionstart() -> None:
    """Tests start hundreds of processes: compile the product once, also where Python is told to keep no bytecode."""
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "runner", quiet=1)


def _handlers() -> dict[signal.Signals, Handler]:
    # SIGALRM is pytest-timeout's; SIGCHLD torch's for good, once a loader had workers.
    others = set(signal.Signals) - {signal.SIGALRM, signal.SIGCHLD}
    return {number: signal.getsignal(number) for number in others}


@pytest.fixture(autouse=True)
def signals_mean_what_they_meant() -> Iterator[None]:
    """Whoever installs a signal's handler, or blocks a signal, in this process must undo it."""
    handlers, blocked = _handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    changed = {number: handler for number, handler in handlers.items() if signal.getsignal(number) != handler}
    put_back(changed)
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert not changed, f"handlers left behind: {[number.name for number in changed]}"
    assert mask == blocked


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nothing listens; it and the one after it are kept for whoever names them."""
    with contextlib.ExitStack() as held:
        for _ in range(50):
            port = held.enter_context(contextlib.closing(ReservedPort())).number
            with contextlib.suppress(OSError, OverflowError):
                held.enter_context(contextlib.closing(ReservedPort(port + 1)))
                break
        else:
            raise RuntimeError("no two neighbouring ports are free")
        yield port
