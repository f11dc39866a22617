"""Which workers of a node are alive, and how far they are: one small file each, in the control folder.

A worker that is killed cannot say so. Its file stays behind without its process, and the supervisor sees that
within a poll, whoever reaps the process. While a worker starts up, the file also says in which part of that it is and
how long that may take; an alarm writes its Python stacks to another file once that time is over (faulthandler's timer
thread needs no interpreter lock). Standard library only: imports are the first part.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.launch import farewell
from runner.launch.control import CONTROL, START_TIMEOUT
from runner.launch.process import alive, failing_with, state_of

_PROGRESS = "progress"  # file in the control folder: the newest start of the workers that finished a step
_WIDTH = 20  # digits of the step counter, rewritten in place at each step
IMPORTS = "imports"  # the part of start-up before the recipe is read


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
        part: of start-up that it is in; empty outside of start-up.
        since: monotonic clock at which that part began.
        longest: seconds that it may take.
    """

    pid: int
    rank: int
    local_rank: int
    restart: int
    attempt: str
    step: int
    part: str = ""
    since: float = 0.0
    longest: float = 0.0


def start_of(attempt: str) -> str:
    """What the lives of one set of worker processes have in common in their names; empty before the ranks have met.

    A launcher's own count of its restarts does not tell two starts apart: it counts none that a fault on another node
    has made it join, so nodes may also count differently.
    """
    return "-".join(attempt.split("-")[:2])  # what follows counts the lives in one process


class Presence:
    """This worker's file; does nothing where there is no control folder.

    Attributes:
        importing: whether nothing but imports has happened so far.
        done: whether the run is done on this rank.
    """

    def __init__(self, control: Path | None, *, rank: int, local_rank: int, restart: int) -> None:
        self._who = f"{rank} {local_rank} {restart}"
        self._restart = restart
        self._control = control
        self._fd = self._stacks = -1
        self._attempt, self._step = "", 0
        self.importing, self.done = True, False
        self._armed = False
        self._lock = threading.Lock()  # a life is ended by another thread than the one that starts it
        if control is None:
            return
        self._path = _signs(control) / str(os.getpid())
        farewell.forget(control, os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        self._stacks = os.open(stacks_file(control, os.getpid()), flags | os.O_APPEND, 0o644)
        self._write("", 0.0)

    @classmethod
    def before_imports(cls, environment: Mapping[str, str]) -> Presence:
        """Of a worker that has imported nothing yet and is about to; from what its launcher and supervisor told it."""
        control = environment.get(CONTROL)
        presence = cls(
            Path(control) if control and "RANK" in environment else None,
            rank=int(environment.get("RANK", "0")),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            restart=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
        if START_TIMEOUT in environment:
            presence.starting(IMPORTS, float(environment[START_TIMEOUT]))
        return presence

    def live(self, attempt: str) -> None:
        """A life begins."""
        self._attempt, self._step = attempt, 0
        self.started()

    def starting(self, part: str, longest: float) -> None:
        """A part of start-up begins, which may take `longest` seconds; one word."""
        with self._lock:
            if self._fd < 0:
                return
            self._write(part, longest)
            os.ftruncate(self._stacks, 0)
            faulthandler.dump_traceback_later(longest, repeat=True, file=self._stacks)
            self._armed = True

    def started(self) -> None:
        """Start-up is over, or the life is."""
        with self._lock:
            self.importing = False
            if self._armed:  # else the alarm, where there is one, is somebody else's
                faulthandler.cancel_dump_traceback_later()
                self._armed = False
            if self._fd >= 0:
                self._write("", 0.0)

    def _write(self, part: str, longest: float) -> None:
        told = f"{self._who} {self._attempt or '-'} {part or '-'} {time.monotonic():.3f} {longest:.3f}"
        text = f"{self._step:0{_WIDTH}d} {told}\n"
        os.pwrite(self._fd, text.encode(), 0)
        os.ftruncate(self._fd, len(text))

    def step(self, step: int) -> None:
        """`step` is finished."""
        self._step = step
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

    def ends(self, longest: float) -> None:
        """This worker has said what it ends with; to be gone may take it `longest` seconds."""
        self.importing = False
        self.starting(farewell.END if self.done else farewell.LEAVING, longest)

    def finish(self, write: Callable[[], None], longest: float) -> None:
        """The run is done on this rank once `write` has written that down. What is left may take `longest` seconds."""
        self.importing = False
        self.starting(farewell.END, longest)
        write()
        self.done = True
        if self._control is not None:
            farewell.mark_done(self._control)

    def leave(self) -> None:
        """This worker ends of its own accord, and has said why."""
        self.started()
        with self._lock:
            if self._fd >= 0:
                assert self._control is not None
                self._path.unlink(missing_ok=True)
                stacks_file(self._control, os.getpid()).unlink(missing_ok=True)
                os.close(self._fd)
                os.close(self._stacks)
                self._fd = -1


def _signs(control: Path) -> Path:
    folder = control / "workers"
    folder.mkdir(exist_ok=True)
    return folder


def stacks_file(control: Path, pid: int) -> Path:
    """What the alarm of a worker that starts for too long writes to."""
    folder = control / "stacks"
    folder.mkdir(exist_ok=True)
    return folder / f"{pid}.txt"


class Roll:
    """The supervisor's view of its node's workers."""

    def __init__(self, control: Path) -> None:
        self._folder, self._control = _signs(control), control
        self.parted: list[WorkerSign] = []  # done, and gone
        self.again_after_all_done = self._was_all_done = False
        self._newest: dict[int, int] = {}  # by place on the node: the worker that signed last
        self.most_restarts = 0
        self.seen_any = False
        self._latest: WorkerSign | None = None  # that has named its life
        self._frozen_since: dict[int, float] = {}
        self._known: set[int] = set()

    def newcomers(self) -> list[WorkerSign]:
        """Workers that have signed since the last call, dead or alive."""
        pids = {int(name) for name in os.listdir(self._folder)}  # noqa: PTH208 - names are process ids
        new = [sign for sign in map(self._read, sorted(pids - self._known)) if sign is not None]
        self._known = (self._known & pids) | {sign.pid for sign in new}
        if new and self.all_done:
            self.again_after_all_done = self._was_all_done = True
        self._newest |= {sign.local_rank: sign.pid for sign in new}
        return new

    def dead(self) -> list[WorkerSign]:
        """Workers that vanished without a word since the last call."""
        dead = []
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
            sign = self._read(int(name))
            if sign is None:
                continue
            self.seen_any = self.seen_any or sign.part != IMPORTS
            self.most_restarts = max(self.most_restarts, sign.restart)
            self._latest = sign if sign.attempt else self._latest
            # Who is told of a failure ahead of the end acts on it: the first to fail need not be the first to be gone.
            if not alive(sign.pid) or failing_with(sign.pid) is not None:
                (self._folder / name).unlink(missing_ok=True)
                if self.is_done(sign):
                    self.parted.append(sign)
                elif sign.part != farewell.LEAVING:
                    dead.append(sign)
        return dead

    def is_done(self, sign: WorkerSign) -> bool:
        """Whether the run is done on this worker's rank, so that its end is no death."""
        return farewell.is_done(self._control, sign.pid)

    @property
    def all_done(self) -> bool:
        """Whether the run is done on all ranks of this node, or was before its launcher started them once more."""
        done = all(farewell.is_done(self._control, pid) for pid in self._newest.values())
        return self._was_all_done or (bool(self._newest) and done)

    def signs(self) -> list[WorkerSign]:
        """What each that has signed, and not left, said last."""
        signs = map(self._read, map(int, os.listdir(self._folder)))  # noqa: PTH208 - names are process ids
        return [sign for sign in signs if sign is not None]

    def starting(self) -> list[WorkerSign]:
        """Workers that are in a part of their start-up, or of their end."""
        signs = map(self._read, map(int, os.listdir(self._folder)))  # noqa: PTH208 - names are process ids
        return [sign for sign in signs if sign is not None and sign.part]

    def at_work(self) -> list[WorkerSign]:
        """Workers that have signed, live, and have not come to their end."""
        signs = map(self._read, map(int, os.listdir(self._folder)))  # noqa: PTH208 - names are process ids
        ends = (farewell.END, farewell.LEAVING)
        return [sign for sign in signs if sign is not None and sign.part not in ends and alive(sign.pid)]

    @property
    def any_done(self) -> bool:
        """Whether the run is done on a rank of this node, in the newest start of its workers."""
        return any(farewell.is_done(self._control, pid) for pid in self._newest.values())

    def latest(self) -> WorkerSign | None:
        """What a worker said last that has named its life, dead or alive; None where none has."""
        signs = map(self._read, map(int, os.listdir(self._folder)))  # noqa: PTH208 - names are process ids
        for sign in signs:
            self._latest = sign if sign is not None and sign.attempt else self._latest
        return self._latest

    def others(self, dead: WorkerSign) -> list[WorkerSign]:
        """Workers that live, of the same start as a dead one."""
        signs = [self._read(int(name)) for name in os.listdir(self._folder)]  # noqa: PTH208 - names are process ids
        return [
            sign
            for sign in signs
            if sign is not None
            and (sign.restart, start_of(sign.attempt)) == (dead.restart, start_of(dead.attempt))
            and sign.part not in (farewell.END, farewell.LEAVING)
            and alive(sign.pid)
        ]

    def pids(self) -> set[int]:
        """Those that have signed, and have not come to their end."""
        signs = map(self._read, map(int, os.listdir(self._folder)))  # noqa: PTH208 - names are process ids
        return {sign.pid for sign in signs if sign and sign.part not in (farewell.END, farewell.LEAVING)}

    def any_lives(self) -> bool:
        """Whether a worker that has signed, and not left, is there."""
        return any(map(alive, map(int, os.listdir(self._folder))))  # noqa: PTH208 - names are process ids

    def frozen(self, longest: float) -> list[WorkerSign]:
        """Workers that have been stopped (SIGSTOP, not by a debugger) for more than `longest` seconds."""
        found, now = [], time.monotonic()
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
            if state_of(int(name)) != "T":
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
        parts = text.partition("\n")[0].split()  # what is left of a longer line may follow for a moment
        if len(parts) != 8:  # it is just being written for the first time
            return None
        return WorkerSign(
            pid=pid,
            step=int(parts[0]),
            rank=int(parts[1]),
            local_rank=int(parts[2]),
            restart=int(parts[3]),
            attempt=parts[4] if parts[4] != "-" else "",
            part=parts[5] if parts[5] != "-" else "",
            since=float(parts[6]),
            longest=float(parts[7]),
        )
