"""A signal's handler that raises, as torch's for dead data workers, and the callback of NVRx's watchdog."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator

import pytest
from nvidia_resiliency_ext.inprocess import progress_watchdog
from nvidia_resiliency_ext.inprocess.progress_watchdog import ProgressWatchdog

from runner.recovery.nvrx import spare_watchdog


class Died(RuntimeError):
    """What the handler raises."""


@pytest.fixture
def raising() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Died

    old = signal.signal(signal.SIGUSR2, handler)
    yield
    signal.signal(signal.SIGUSR2, old)


def callback_with_a_signal_in_it(monkeypatch: pytest.MonkeyPatch) -> int:
    """NVRx's callback, in which the signal arrives; how many it has counted."""
    stamp = time.monotonic

    def monotonic() -> float:
        signal.raise_signal(signal.SIGUSR2)
        return stamp()

    class Time:
        pass

    clock = Time()
    clock.monotonic = monotonic  # type: ignore[attr-defined]
    monkeypatch.setattr(progress_watchdog, "time", clock)
    seen = ctypes.create_string_buffer(ctypes.sizeof(ctypes.c_double) + ctypes.sizeof(ctypes.c_int64))
    ProgressWatchdog.get_automatic_timestamp(ctypes.addressof(seen))
    return int.from_bytes(seen.raw[ctypes.sizeof(ctypes.c_double) :], "little")


@pytest.mark.usefixtures("raising")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_handler_raises_in_the_callback_is_lost_with_its_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callback_with_a_signal_in_it(monkeypatch) == 0


@pytest.mark.usefixtures("raising")
def test_a_spared_callback_counts_and_the_handler_raises_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_watchdog(signal.SIGUSR2)
    assert callback_with_a_signal_in_it(monkeypatch) == 1
    with pytest.raises(Died):
        for _ in range(1000):
            time.sleep(0.01)


@pytest.mark.usefixtures("raising")
def test_elsewhere_the_handler_raises_at_once() -> None:
    spare_watchdog(signal.SIGUSR2)
    with pytest.raises(Died):
        signal.raise_signal(signal.SIGUSR2)
