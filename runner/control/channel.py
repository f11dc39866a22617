"""What the supervisor and its workers tell each other on one node: environment names and a small folder.

Standard library only: workers read this before they import anything heavy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

RUN_ID = "NVRX_RUN_ID"  # names shared memory and everything else that outlives a process
RUN_FOLDER = "NVRX_RUN_FOLDER"  # marks every process of a run as belonging to it
CONTROL = "NVRX_RUN_CONTROL"  # folder on this node, private to one supervisor
TERMINAL = "NVRX_RUN_TERMINAL"  # what rank 0 writes its log to, instead of the launcher's output
WORKER = "NVRX_RUN_WORKER"  # process id of the worker that started a process; see `supervisor`
START_TIMEOUT = "NVRX_RUN_START_TIMEOUT"  # seconds; what a worker needs of the recipe before it reads it
VERBOSE = "NVRX_RUN_VERBOSE"  # "1": tracebacks are shown


@dataclass(frozen=True)
class Control:
    """The folder through which a supervisor speaks to the workers of its node.

    A file rather than a signal, because the launchers answer SIGTERM by killing their workers, and send SIGTERM
    themselves whenever one worker of a group has failed.
    """

    folder: Path | None

    @classmethod
    def from_environment(cls) -> Control:
        """The control folder that the supervisor named; none where the launcher was started by hand."""
        text = os.environ.get(CONTROL)
        return cls(Path(text) if text else None)

    def request_stop(self, reason: str) -> None:
        """Ask every worker of this node to save and stop at the next step boundary."""
        if self.folder is None:
            raise ValueError("no control folder: nobody would read the request")
        draft = self.folder / "stop.draft"
        draft.write_text(reason)
        draft.rename(self.folder / "stop")

    def stop_requested(self) -> str | None:
        """Why the run was asked to stop, or nothing. One `stat` where it was not."""
        if self.folder is None:
            return None
        try:
            return (self.folder / "stop").read_text()
        except FileNotFoundError:
            return None


def mark_children() -> None:
    """Called by a worker: processes that it starts from now on are known as its own."""
    os.environ[WORKER] = str(os.getpid())
