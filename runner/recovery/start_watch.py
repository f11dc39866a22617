"""A rank that hangs while it starts notices that itself, in a thread, and its life ends as for any hang.

What keeps it from noticing (native code that holds the interpreter, SIGSTOP), or its main thread from hearing of it
(any other native code), leaves it to its supervisor, which kills it a little later (`launch/watch/overdue.py`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from runner.control.signs import setting_of
from runner.errors import RunError
from runner.recovery.sight import Sight

_LOOKS = 0.25  # seconds


class StartHang(BaseException):
    """Raised in the main thread, wherever it is. No `Exception`: whoever handles those must not take it for its own."""

    error: StartHangError


class StartHangError(RunError):
    """This rank hung while it started.

    Args:
        message: in what, and for how long it should have taken at most.
        sight: what all its threads were doing.
    """

    def __init__(self, message: str, sight: Sight) -> None:
        super().__init__(message)
        self.sight = sight


class StartWatch:
    """Watches the main thread through the parts of its start-up.

    Its thread runs from the start and to the end of the process: the main thread must not start one while a life
    ends (docs/recovery.md).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._part = ""
        self._longest = self._spent = 0.0
        self._hung: Callable[[StartHangError], None] = raise_in_main_thread
        self._wanted = threading.Event()
        threading.Thread(target=self._watch, name="start-watch", daemon=True).start()

    def starting(self, part: str, longest: float, hung: Callable[[StartHangError], None]) -> None:
        """A part of start-up begins, which may take `longest` seconds; then `hung` is called, in another thread."""
        with self._lock:
            self._part, self._longest, self._spent, self._hung = part, longest, 0.0, hung
        self._wanted.set()

    def started(self) -> None:
        """Start-up is over, or the life is."""
        self._wanted.clear()
        with self._lock:
            self._part = ""

    def _watch(self) -> None:
        while True:
            self._wanted.wait()
            before = time.monotonic()
            time.sleep(_LOOKS)
            # A process that was stopped and goes on has not been at work meanwhile.
            passed = min(time.monotonic() - before, 2 * _LOOKS)
            with self._lock:
                if not self._part:
                    continue
                self._spent += passed
                if self._spent <= self._longest:
                    continue
                sight = Sight.now()
                if sight.waits_for_peers:
                    continue
                limit = f"{self._longest:g} s ({setting_of(self._part)})"
                error = StartHangError(f"hung in start-up ({self._part}): not done after {limit}", sight)
                hung, self._part = self._hung, ""
            hung(error)


def raise_in_main_thread(error: StartHangError) -> None:
    """Have the main thread raise a `StartHang`, as soon as it runs bytecode."""
    kind = type(
        "StartHang", (StartHang,), {"error": error}
    )  # a class can be raised in another thread, no object
    main = threading.main_thread().ident or 0
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kind))
