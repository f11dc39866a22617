"""When to restart, and when not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from runner.control.presence import Presence
from runner.launch.budget import LONGEST_PAUSE, WindowBudget, startup_pause
from runner.recipe.recovery import RestartWindow


def test_restarts_far_apart_are_forgotten() -> None:
    budget = WindowBudget(RestartWindow(restarts=2, time=timedelta(seconds=10)), "recovery.x.window")
    for now in (0.0, 6.0, 12.0, 18.0):
        budget.restarted(now)
        assert not budget.spent(now)
    budget.restarted(19.0)
    assert budget.spent(19.0) == "3 restarts within 10 s (recovery.x.window allows 2)"
    assert not budget.spent(23.0)


def test_without_a_window_any_number_is_put_up_with() -> None:
    budget = WindowBudget(None, "recovery.x.window")
    for _ in range(100):
        budget.restarted(1.0)
    assert not budget.spent(1.0)


def test_pauses_double_up_to_a_minute() -> None:
    assert [startup_pause(2.0, failures) for failures in range(7)] == [0, 2, 4, 8, 16, 32, LONGEST_PAUSE]
    assert startup_pause(2.0, 10_000) == LONGEST_PAUSE
    assert startup_pause(0.0, 3) == 0


def test_failed_starts_in_a_row_are_counted_on_the_node(tmp_path: Path) -> None:
    def start(restart: int) -> Presence:
        return Presence(tmp_path, rank=0, local_rank=0, restart=restart)

    assert [start(restart).failed_starts() for restart in range(3)] == [0, 1, 2]
    start(2).progressed()
    assert [start(restart).failed_starts() for restart in (2, 3, 4)] == [0, 0, 1]
    assert Presence(None, rank=0, local_rank=0, restart=5).failed_starts() == 0
