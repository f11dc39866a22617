"""Appends a process's events to the run's ledger.

One file per process (`<run>/ledger/rank-00003-1764471621123-node7-4711.000.jsonl`: rank, milliseconds, host, process
id), opened with O_APPEND and written with one `write()` a line, so that a killed process loses at most the end of its
last line. When a file has reached `segment_bytes` the next one is begun, and the one before the last is folded into
the process's history file (`runner.ledger.rollup`): the ledger of a run of any length stays within a few segments a
process.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from pathlib import Path

from runner.ledger.codec import Stamp, encode
from runner.ledger.events import Event, LinesDropped
from runner.ledger.rollup import fold

_log = logging.getLogger("runner.ledger")

SEGMENT_BYTES = 4 << 20
"""About 15,000 steps. The newest two segments hold every step, older ones are folded."""
RETRY_SECONDS = 5.0
"""How often a writer whose file could not be opened tries again."""


def node_id() -> str:
    """Identifies a boot of a machine: monotonic clocks compare within it and nowhere else."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux: a host name is the best there is
        return socket.gethostname()


class LedgerWriter:
    """The ledger of one process. Implements `runner.train.ports.Ledger`; safe to call from any thread.

    Args:
        folder: the run's folder; files go to `ledger/` in it.
        rank: this process's rank, -1 for a launcher.
        life: the life that events belong to until `begin_life` says otherwise.
        segment_bytes: size at which a new file is begun.
    """

    def __init__(self, folder: Path, *, rank: int, life: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = Path(folder) / "ledger"
        self._rank = rank
        self._life = life
        self._segment_bytes = segment_bytes
        self._node = node_id()
        self._lock = threading.RLock()  # re-entrant: a signal handler may record while this thread does
        self._reset()
        with self._lock:
            self._open()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._fd = -1
        self._segment = 0
        self._folded = 0
        self._size = 0
        self._dropped = 0
        self._told = False
        self._torn = False
        self._next_try = 0.0
        who = "launcher" if self._rank < 0 else f"rank-{self._rank:05d}"
        # With the host: pods start together and count their processes alike, and launchers have no rank to differ in.
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        self._base = f"{who}-{time.time_ns() // 1_000_000}-{host}-{self._pid}"

    def begin_life(self, life: str, *, rank: int | None = None) -> None:
        """Events from now on belong to `life` (in-process restart), and to `rank` where that has changed."""
        self._life = life
        if rank is not None:
            self._rank = rank

    def record(self, event: Event, *, ago: float = 0.0) -> None:
        """Append one event. Never raises for a full or lost disk: says so on the log once, and counts.

        Args:
            ago: seconds since it happened.

        Raises:
            TypeError, ValueError: the event holds something that is not JSON (a programming error).
        """
        stamp = Stamp(
            time.time() - ago, time.monotonic() - ago, self._node, self._rank, self._life, os.getpid()
        )
        line = encode(event, stamp)
        if stamp.pid != self._pid:  # forked: the file belongs to the parent
            self._lock = threading.RLock()
            self._reset()
        with self._lock:
            if self._dropped:
                note = encode(LinesDropped(self._dropped), stamp)
                if self._write(note):
                    self._dropped = 0
            if not self._write(line):
                self._dropped += 1
            elif self._size >= self._segment_bytes:
                self._rotate()

    def sync(self) -> None:
        """Make everything recorded so far durable (fsync). Like `record`, never raises for a lost disk."""
        with self._lock:
            if self._fd >= 0:
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    self._complain(error)

    def close(self) -> None:
        """Sync and close. A later `record` opens a new file."""
        self.sync()
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._reset()

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self._path(self._segment)

    def _path(self, segment: int) -> Path:
        return self._folder / f"{self._base}.{segment:03d}.jsonl"

    def _open(self) -> bool:
        if self._fd >= 0:
            return True
        if time.monotonic() < self._next_try:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o644)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            self._next_try = time.monotonic() + RETRY_SECONDS
            self._complain(error)
            return False
        return True

    def _write(self, line: bytes) -> bool:
        if not self._open():
            return False
        data = b"\n" + line if self._torn else line
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            self._torn = self._torn or done > 0
            self._complain(error)
            return False
        self._torn = False
        self._size += done
        return True

    def _rotate(self) -> None:
        os.close(self._fd)
        self._fd = -1
        self._segment += 1
        self._size = 0
        while self._folded <= self._segment - 2:  # more than one where the last folding was interrupted
            try:
                fold(self._folder, self._base, self._folded, limit_bytes=self._segment_bytes)
            except OSError as error:
                self._complain(error)
                return
            self._folded += 1

    def _complain(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            _log.error(
                "the ledger cannot be written: %s: %s; training goes on, goodput will lack what is lost",
                self.path,
                error.strerror or error,
            )
