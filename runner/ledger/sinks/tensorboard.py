"""TensorBoard event files under `<run>/tensorboard`, written with TensorBoard's own writer.

After a restart TensorBoard is told to forget what lies beyond the point at which training went on (SessionLog.START),
so a curve has no second branch of steps that were lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.ledger.codec import Stamp
from runner.ledger.events import Event, Loaded
from runner.ledger.sinks.sink import Rank0Scalars


class TensorBoardSink:
    """Writes the scalars of rank 0; on other nodes nothing."""

    def __init__(self, run_folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Entry
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._entry, self._session, self._summary = Entry, SessionLog, Summary
        self._folder = run_folder / "tensorboard"
        self._open = EventFileWriter
        self._writer: Any = None
        self._pick = Rank0Scalars()

    def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
        """Write what is new; a former command has written its own."""
        found = self._pick.scalars(event, stamp)
        if not fresh or stamp.rank != 0:
            return
        if isinstance(event, Loaded) and event.step > 0:
            start = self._session(status=self._session.START)
            self._add(self._entry(wall_time=stamp.t, step=event.step + 1, session_log=start))
        if found is not None:
            step, scalars = found
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            self._add(self._entry(wall_time=stamp.t, step=step, summary=self._summary(value=values)))

    def _add(self, entry: Any) -> None:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = self._open(str(self._folder))
        self._writer.add_event(entry)

    def flush(self) -> None:
        """Make it visible to TensorBoard."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
