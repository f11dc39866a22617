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
from pathlib import Path

from runner.control import farewell
from runner.control.channel import CONTROL, START_TIMEOUT
from runner.control.monitors import announce_monitor, withdraw_monitor
from runner.control.signs import IMPORTS, signs_folder, stacks_file

_PROGRESS = "progress"  # file in the control folder: the newest start of the workers that finished a step
_WIDTH = 20  # digits of the step counter, rewritten in place at each step


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
        self._path = signs_folder(control) / str(os.getpid())
        farewell.forget(control, os.getpid())
        withdraw_monitor(control)  # of a process that had this number before
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

    def monitored(self, monitor: int) -> None:
        """NVRx's monitor process watches this worker from now on, and its supervisor that one."""
        if self._control is not None:
            announce_monitor(self._control, monitor)

    def unmonitored(self) -> None:
        """That process is about to end by itself."""
        if self._control is not None:
            withdraw_monitor(self._control)

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
