"""Steps that nobody saw end: a hang after a step is no part of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runner.train.step_clock import StepClock


@dataclass
class At:
    """A moment of a device that keeps time; None of one that does not."""

    seconds: float | None

    def since(self, earlier: At) -> float | None:
        if self.seconds is None or earlier.seconds is None:
            return None
        return self.seconds - earlier.seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("runner.train.step_clock.time.monotonic", lambda: now[0])
    return now


def test_steps_follow_each_other_without_a_gap(host: list[float]) -> None:
    clock = StepClock(At(5.0))
    host[0] = 100.5
    clock.stalled(0.1)
    first = clock.ended(At(5.4))
    host[0] = 101.25
    second = clock.ended(At(6.0))
    assert (first.seconds, first.stalled, first.ago) == pytest.approx((0.5, 0.1, 0.0))
    assert (second.seconds, second.stalled, second.ago) == pytest.approx((0.75, 0.0, 0.0))


def test_a_step_before_a_hang_took_what_the_device_needed_for_it(host: list[float]) -> None:
    clock = StepClock(At(5.0))
    host[0] = 100.5
    clock.ended(At(5.5))
    clock.stalled(0.01)
    host[0] = 106.0  # five seconds of hanging in the step after it
    took = clock.ended_unseen(At(5.95))
    assert (took.seconds, took.stalled, took.ago) == pytest.approx((0.45, 0.01, 5.05))


def test_what_the_next_step_waited_for_is_not_more_than_the_step(host: list[float]) -> None:
    clock = StepClock(At(5.0))
    clock.stalled(2.0)  # of the step that hangs
    host[0] = 106.0
    took = clock.ended_unseen(At(5.5))
    assert (took.seconds, took.stalled) == pytest.approx((0.5, 0.5))


def test_a_step_never_ends_in_the_future(host: list[float]) -> None:
    clock = StepClock(At(5.0))
    host[0] = 100.2
    took = clock.ended_unseen(At(5.3))
    assert (took.seconds, took.ago) == pytest.approx((0.2, 0.0))


def test_without_a_devices_clock_a_step_ends_when_it_is_seen(host: list[float]) -> None:
    clock = StepClock(At(None))
    host[0] = 103.0
    took = clock.ended_unseen(At(None))
    assert (took.seconds, took.ago) == pytest.approx((3.0, 0.0))
