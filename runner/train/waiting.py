"""How long this rank waits for others: what tells a slow rank from those that it keeps waiting.

Ranks that train together all take as long as the slowest, so the time of a step says nothing about a rank. A thread
looks, many times a second, whether the main thread is blocked (the kernel says so) in the middle of a collective (its
stack says so). On a GPU the host waits for its own device, whoever that waits for: this way shows only what the host
itself is slow at there (`kernels` measures the GPU).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from runner.control.silence import files_of, waits_for_peers

_EVERY = 0.02  # seconds
_LONGEST = 0.2  # what one look may stand for: this thread may have been kept from looking


class PeerWaits:
    """Counts the seconds that the main thread waits for other ranks; its thread runs to the end of the process."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident or 0
        self._stat = Path(f"/proc/self/task/{os.getpid()}/stat")
        self._lock = threading.Lock()
        self._waited = 0.0
        threading.Thread(target=self._look, name="peer-waits", daemon=True).start()

    def take(self) -> float:
        """Seconds since the last call."""
        with self._lock:
            waited, self._waited = self._waited, 0.0
        return waited

    def _look(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_EVERY)
            now = time.monotonic()
            passed, last = min(now - last, _LONGEST), now
            if self._blocked() and waits_for_peers(files_of(sys._current_frames().get(self._main))):
                with self._lock:
                    self._waited += passed

    def _blocked(self) -> bool:
        text = self._stat.read_text()
        return text[text.rindex(")") + 2] == "S"
