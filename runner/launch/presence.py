"""Which workers of a node are alive, and how far they are: one small file each, in the control folder.

A worker that is killed cannot say so. Its file stays behind without its process, and the supervisor sees that
within a poll, whoever reaps the process. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from runner.launch.process import stat_fields

_WIDTH = 20  # digits of the step counter, rewritten in place at each step


@dataclass(frozen=True)
class WorkerSign:
    """What is known about one worker process.

    Attributes:
        pid: its process.
        rank: of its first life.
        local_rank: its place on the node.
        restart: how often its launcher had restarted the workers before.
        attempt: its life; empty before the ranks have met.
        step: steps finished.
    """

    pid: int
    rank: int
    local_rank: int
    restart: int
    attempt: str
    step: int


class Presence:
    """This worker's file; does nothing where there is no control folder."""

    def __init__(self, control: Path | None, *, rank: int, local_rank: int, restart: int) -> None:
        self._who = f"{rank} {local_rank} {restart}"
        self._fd = -1
        if control is None:
            return
        folder = control / "workers"
        folder.mkdir(exist_ok=True)
        self._path = folder / str(os.getpid())
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.live("")

    def live(self, attempt: str) -> None:
        """A life begins."""
        if self._fd >= 0:
            text = f"{0:0{_WIDTH}d} {self._who} {attempt or '-'}\n"
            os.pwrite(self._fd, text.encode(), 0)
            os.ftruncate(self._fd, len(text))

    def step(self, step: int) -> None:
        """`step` is finished."""
        if self._fd >= 0:
            os.pwrite(self._fd, f"{step:0{_WIDTH}d}".encode(), 0)

    def leave(self) -> None:
        """This worker ends of its own accord, and has said why."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


class Roll:
    """The supervisor's view of its node's workers."""

    def __init__(self, control: Path) -> None:
        self._folder = control / "workers"
        self._folder.mkdir(exist_ok=True)
        self.most_restarts = 0
        self.seen_any = False

    def dead(self) -> list[WorkerSign]:
        """Workers that vanished without a word since the last call."""
        dead = []
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
            sign = self._read(int(name))
            if sign is None:
                continue
            self.seen_any = True
            self.most_restarts = max(self.most_restarts, sign.restart)
            if _gone(sign.pid):
                (self._folder / name).unlink(missing_ok=True)
                dead.append(sign)
        return dead

    def alive(self) -> list[WorkerSign]:
        """Workers that are there now."""
        signs = [self._read(int(name)) for name in os.listdir(self._folder)]  # noqa: PTH208
        return [sign for sign in signs if sign is not None and not _gone(sign.pid)]

    def _read(self, pid: int) -> WorkerSign | None:
        try:
            text = (self._folder / str(pid)).read_text()
        except FileNotFoundError:  # it has just left
            return None
        parts = text.split()
        if len(parts) != 5:  # it is just being written for the first time
            return None
        return WorkerSign(
            pid=pid,
            step=int(parts[0]),
            rank=int(parts[1]),
            local_rank=int(parts[2]),
            restart=int(parts[3]),
            attempt=parts[4] if parts[4] != "-" else "",
        )


def _gone(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is None or fields[0] in ("Z", "X")
