"""Heartbeats of one life to ft_launcher's rank monitor."""

from __future__ import annotations

import faulthandler
import threading
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from runner.launch.silence import announce, remove_if_empty
from runner.recovery.nvrx import connect_to_rank_monitor
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
            self._stacks = stacks.open("w", encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # a full disk must not end a run that could go on
            complain(
                f"the stacks of this rank will be unknown if it falls silent: {stacks}: {error.strerror}"
            )
        self._path = stacks
        self._alarm = alarm.total_seconds()

    def beat(self) -> None:
        """Tell the monitor that this rank goes on."""
        with self._lock:
            self._client.send_heartbeat()
        if self._stacks is not None:
            faulthandler.dump_traceback_later(self._alarm, file=self._stacks)

    def close(self) -> None:
        """Close the connection; the file stays where something was written."""
        faulthandler.cancel_dump_traceback_later()
        with self._lock:
            self._client.shutdown_workload_monitoring()
        if self._stacks is None:
            return
        self._stacks.close()
        remove_if_empty(self._path)
