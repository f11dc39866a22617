"""Deletes the checkpoints that retention does not keep: beside training, one round at a time, on rank 0.

A deletion takes as long as storage pleases, so it holds up neither the next save nor the commit that made it due. What
cannot be deleted is told once, with path and reason; a checkpoint that is committed stays so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.record import looks_whole
from runner.recipe.checkpoint import CheckpointSection

_PAUSE = 0.01
_IDLE = 60.0  # seconds that the thread waits for the next commit


class Retention:
    """All rounds of one process.

    Args:
        folder: the checkpoints.
        section: `keep_last` and `keep_every`.
        log: told what cannot be deleted.
    """

    def __init__(self, folder: CheckpointFolder, section: CheckpointSection, log: Any) -> None:
        self._folder = folder
        self._section = section
        self._log = log
        self._changed = threading.Condition()
        self._wanted = False
        self._running = False
        self._thread: threading.Thread | None = None
        self._told: set[tuple[Path, str]] = set()

    def request(self) -> None:
        """A checkpoint has been committed: delete what is not kept any more. Any thread; does not block."""
        with self._changed:
            self._wanted = True
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="retention", daemon=True)
                self._thread.start()

    def wait(self, patience: float, beat: Callable[[], None]) -> bool:
        """Wait until nothing is being deleted; False where that takes longer than `patience` seconds."""
        end = time.monotonic() + patience
        while self._wanted or self._running:
            if time.monotonic() > end:
                return False
            beat()
            time.sleep(_PAUSE)
        return True

    def sweep(self) -> None:
        """Remove unfinished checkpoints, and finish deletions that were cut short; each is told once.

        The writer of an abandoned save may make anew what has been removed already.
        """
        removed, failures = self._folder.sweep()
        for path in removed:
            if (path, "") not in self._told:
                self._told.add((path, ""))
                self._log.warning("unfinished checkpoint ignored and removed", path=str(path))
        for path, reason in failures:
            self._tell("unfinished checkpoint ignored, and cannot be removed", path, reason)

    def _work(self) -> None:
        """The thread: it stays a while, since a thread of its own for every save would scatter the heap."""
        try:
            while True:
                with self._changed:
                    if not self._changed.wait_for(lambda: self._wanted, _IDLE):
                        self._thread = None
                        return
                    self._running = True  # first: `wait` looks without the lock
                    self._wanted = False
                self._round()
                self._running = False
        finally:  # also after a defect of ours, which the thread's hook shows: nobody shall wait for this thread
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread, self._running = None, False

    def _round(self) -> None:
        try:
            _, failures = self._folder.retain(
                self._section.keep_last, self._section.keep_every, lambda entry: looks_whole(entry.path)
            )
        except OSError as error:
            failures = [(self._folder.root, error.strerror or str(error))]
        for path, reason in failures:
            self._tell("old checkpoint cannot be deleted", path, reason)

    def _tell(self, event: str, path: Path, reason: str) -> None:
        if (path, reason) not in self._told:
            self._told.add((path, reason))
            self._log.warning(
                event, path=str(path), reason=reason, remedy="delete it by hand; training goes on"
            )
