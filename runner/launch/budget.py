"""When to restart: budgets for restarts in quick succession, and pauses where start-up itself fails.

Standard library only.
"""

from __future__ import annotations

from collections import deque

from runner.recipe.recovery import RestartWindow

LONGEST_PAUSE = 60.0  # seconds


class WindowBudget:
    """Counts restarts within a window of time.

    Args:
        window: None puts up with any number.
        setting: dotted name of the setting, for the message.
    """

    def __init__(self, window: RestartWindow | None, setting: str) -> None:
        self._window = window
        self._setting = setting
        self._times: deque[float] = deque()

    def restarted(self, now: float) -> None:
        """A restart happened at `now` (monotonic, seconds)."""
        self._times.append(now)

    def spent(self, now: float) -> str:
        """Why there must be no further restart, as far as `now`; else nothing."""
        if self._window is None:
            return ""
        reach = self._window.time.total_seconds()
        while self._times and self._times[0] < now - reach:
            self._times.popleft()
        if len(self._times) <= self._window.restarts:
            return ""
        return f"{len(self._times)} restarts within {reach:.0f} s ({self._setting} allows {self._window.restarts})"


def startup_pause(base: float, failures: int) -> float:
    """Seconds to wait before another start after `failures` starts in a row without a finished step."""
    return min(LONGEST_PAUSE, base * 2 ** min(failures - 1, 16)) if failures > 0 else 0.0
