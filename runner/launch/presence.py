"""Which workers of a node are alive, and how far they are: one small file each, in the control folder.

A worker that is killed cannot say so. Its file stays behind without its process, and the supervisor sees that
within a poll, whoever reaps the process. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from runner.launch.process import stat_fields

_PROGRESS = "progress"  # file in the control folder: the newest start of the workers that finished a step
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
        self._restart = restart
        self._control = control
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

    def progressed(self) -> None:
        """This start of the workers has finished a step."""
        if self._control is not None:
            draft = self._control / f"progress-{os.getpid()}"
            with contextlib.suppress(OSError):  # a full disk: all it costs is a pause before a later start
                draft.write_text(str(self._restart))
                draft.replace(self._control / _PROGRESS)

    def failed_starts(self) -> int:
        """Starts of this node's workers, right before this one, that ended without a finished step."""
        if self._control is None:
            return 0
        try:
            last = int((self._control / _PROGRESS).read_text())
        except (FileNotFoundError, ValueError):  # none so far, or no room for it
            last = -1
        return max(0, self._restart - 1 - last)

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
        self._frozen_since: dict[int, float] = {}

    def dead(self) -> list[WorkerSign]:
        """Workers that vanished without a word since the last call."""
        dead = []
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
            sign = self._read(int(name))
            if sign is None:
                continue
            self.seen_any = True
            self.most_restarts = max(self.most_restarts, sign.restart)
            if _state(sign.pid) in ("", "Z", "X"):
                (self._folder / name).unlink(missing_ok=True)
                dead.append(sign)
        return dead

    def frozen(self, longest: float) -> list[WorkerSign]:
        """Workers that have been stopped (SIGSTOP, not by a debugger) for more than `longest` seconds."""
        found, now = [], time.monotonic()
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
            if _state(int(name)) != "T":
                self._frozen_since.pop(int(name), None)
            elif now - self._frozen_since.setdefault(int(name), now) > longest:
                sign = self._read(int(name))
                if sign is not None:
                    found.append(sign)
        return found

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


def _state(pid: int) -> str:
    """The state letter of a process; empty where there is no such process."""
    fields = stat_fields(pid)
    return fields[0] if fields else ""
