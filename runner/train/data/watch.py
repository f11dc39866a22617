"""A limit for the time that a data worker may take, which holds whatever the rank is blocked in meanwhile.

torch's own limit covers the wait for a message. A worker that freezes after it has announced a batch leaves the rank
in a read from the worker itself, without any limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_LOOKS = 0.1  # seconds


class DataWorkerError(RuntimeError):
    """A data worker died, or gave nothing in time and has been killed with the others."""


class Watched(Iterator[T]):
    """An iterator over what data workers deliver, each item within `limit` seconds.

    Args:
        items: where they come from.
        limit: seconds; 0 for none.
        kill: ends the data workers, which makes a blocked `items` raise. Called in another thread.
        forget: makes torch look no more for workers that ended: it would raise that a second time, anywhere.
    """

    def __init__(
        self, items: Iterator[T], limit: float, kill: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        self._items, self._limit, self._kill, self._forget = items, limit, kill, forget
        self._asked: float | None = None
        self._late = False
        self._over = threading.Event()
        if limit > 0:
            threading.Thread(target=self._watch, name="data-workers", daemon=True).start()

    def __next__(self) -> T:
        self._asked = time.monotonic()
        try:
            return next(self._items)
        except (RuntimeError, OSError, EOFError) as error:
            self._forget()
            if self._late:
                what = f"a data worker gave nothing for {self._limit:g} s (dataset.worker_timeout), and was killed"
            elif isinstance(error, RuntimeError):  # torch's own, which names the worker and how it ended
                raise
            else:
                what = f"a data worker of this rank is gone: {error!r}"
            raise DataWorkerError(what) from error
        finally:
            self._asked = None

    @property
    def waits(self) -> bool:
        """Whether an item has been asked for and not come."""
        return self._asked is not None

    def close(self) -> None:
        """Nothing more will be asked for."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS):
            asked = self._asked
            if asked is not None and time.monotonic() - asked > self._limit:
                self._late = True
                self._kill()
                return
