"""The context of this worker's GPU is made early, with a driver that only takes notes; where there is none, nothing."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from runner.recovery.awake import wake_gpu


class Driver:
    """The part of the CUDA driver that finds devices and makes contexts."""

    def __init__(self, init: int = 0) -> None:
        self.init = init
        self.calls: list[Any] = []

    def cuInit(self, flags: int) -> int:
        self.calls.append("init")
        return self.init

    def cuDeviceGet(self, device: Any, index: int) -> int:
        self.calls.append(("device", index))
        device._obj.value = 40 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.calls.append(("context", device.value))
        return 0


def woken(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> list[Any]:
    def load(name: str) -> Any:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    wake_gpu(3)
    for thread in threading.enumerate():
        if thread.name == "wake-gpu":
            thread.join(10)
            assert not thread.is_alive()
    assert failures == []
    return driver.calls if driver is not None else []


def test_the_primary_context_of_the_ranks_own_gpu_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert woken(monkeypatch, Driver()) == ["init", ("device", 3), ("context", 43)]


def test_a_driver_that_fails_is_left_to_the_first_use_which_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert woken(monkeypatch, Driver(init=100)) == ["init"]
    assert woken(monkeypatch, None) == []
