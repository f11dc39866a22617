"""Notes in the ledger when this command did not run: stopped with all below it (Ctrl-Z, a batch system), or frozen."""

from __future__ import annotations

import threading
import time

from runner.ledger.events import Suspended
from runner.ledger.writer import LedgerWriter

_LOOK = 0.25  # seconds
LEAST = 5.0
"""Seconds. On a busy machine a thread may wait for its turn; that its peers recorded nothing either is looked at later
(`runner.ledger.history`)."""


class SuspensionWatch:
    """A thread that sleeps, and says so where it slept for much longer than it meant to. A context manager.

    Args:
        ledger: told.
        least: what counts, seconds.
    """

    def __init__(self, ledger: LedgerWriter, *, least: float = LEAST) -> None:
        self._ledger, self._least = ledger, least
        self._over = threading.Event()
        self._looked = 0.0
        self._thread = threading.Thread(target=self._watch, name="suspension", daemon=True)

    def __enter__(self) -> SuspensionWatch:
        self._looked = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_LOOK * 4)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            now = time.monotonic()
            if now - self._looked >= self._least:
                self._ledger.record(Suspended(now - self._looked))
            self._looked = now
