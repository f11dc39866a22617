"""Heartbeats of one life to ft_launcher's rank monitor."""

from __future__ import annotations

import faulthandler
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from runner.control.silence import announce, remove_if_empty
from runner.errors import MonitorGoneError
from runner.recovery.rank_monitor import RankMonitorClientError, connect_to_rank_monitor, send_heartbeat
from runner.streams import complain


class Heartbeats:
    """A connection to the rank monitor. One for each life, closed at its end: the monitor then waits for the next.

    A rank monitor kills a silent rank with a signal that leaves no trace, so the rank keeps an alarm of its own that
    writes the Python stacks of all threads shortly before (faulthandler's timer thread needs no interpreter lock).

    Args:
        stacks: file that the stacks of a silent rank go to.
        control: the node's control folder, through which the supervisor learns of that file; None where there is none.
        alarm: silence after which they are written; below the launcher's heartbeat timeout.
    """

    def __init__(self, stacks: Path, alarm: timedelta, control: Path | None = None) -> None:
        self._client = connect_to_rank_monitor()
        self._lock = threading.Lock()
        self._stacks: TextIO | None = None
        try:
            if control is not None:
                announce(control, stacks)
            stacks.parent.mkdir(parents=True, exist_ok=True)
            # To append: the supervisor may have written there that this rank is frozen.
            self._stacks = stacks.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # a full disk must not end a run that could go on
            complain(
                f"the stacks of this rank will be unknown if it falls silent: {stacks}: {error.strerror}"
            )
        self._path = stacks
        self._alarm = alarm.total_seconds()
        self._vouched = threading.Event()

    def beat(self) -> None:
        """Tell the monitor that this rank goes on."""
        with self._lock:
            self._beat()

    def vouch(self, longest: float) -> None:
        """Beat from a thread until `silence_counts`, for `longest` seconds at most.

        For the first step of a process, in which calls into native code (kernels are loaded, ranks connect) may take
        longer than the heartbeat timeout. NVRx's own timeout for that is over with the first heartbeat, and a restore
        has sent some.
        """
        threading.Thread(target=self._vouch, args=(longest,), name="first-step-beats", daemon=True).start()

    def silence_counts(self) -> None:
        """The first step is over, or the life is. Does not block."""
        self._vouched.set()

    def close(self) -> None:
        """Close the connection; the file stays where something was written."""
        self.silence_counts()
        with self._lock:
            faulthandler.cancel_dump_traceback_later()
            self._client.shutdown_workload_monitoring()
        if self._stacks is None:
            return
        self._stacks.close()
        remove_if_empty(self._path)

    def _vouch(self, longest: float) -> None:
        end = time.monotonic() + longest
        while not self._vouched.wait(min(self._alarm / 4, max(0.0, end - time.monotonic()))):
            with self._lock:
                if self._vouched.is_set() or time.monotonic() >= end:
                    return
                try:
                    self._beat()
                except (
                    RankMonitorClientError,
                    MonitorGoneError,
                    OSError,
                ):  # the main thread's own next heartbeat fails as well
                    return

    def _beat(self) -> None:
        send_heartbeat(self._client)
        if self._stacks is not None:
            faulthandler.dump_traceback_later(self._alarm, file=self._stacks)
