"""A lock file that one command holds for as long as it lives, with a word on who that is. Standard library only."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import BinaryIO

from runner.errors import no_room

_AGAIN = 0.5  # seconds until a lock that is held is tried again


class Held(Exception):
    """Another command holds the lock; `holder` says which."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def take_lock(path: Path, patience: float, note: str = "") -> BinaryIO:
    """Take the lock, waiting `patience` seconds for whoever holds it; closing the file gives it back.

    Args:
        path: made where it is absent.
        note: added to process and host for those that find the lock held.

    Raises:
        Held: it is not given back.
        OSError: the file cannot be made or locked.
    """
    lock = path.open("a+b", buffering=0)
    try:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    lock.seek(0)
                    holder = lock.read().decode("utf-8", "replace").strip() or "unknown"
                    raise Held(holder) from None
                time.sleep(_AGAIN)
        lock.truncate(0)
        try:
            lock.write(f"process {os.getpid()} on {os.uname().nodename}{note}".encode(errors="replace"))
        except OSError as error:
            if not no_room(error):  # the lock counts without its words
                raise
    except BaseException:
        lock.close()
        raise
    return lock
