"""What all threads of this process are doing, and whether that is waiting for other ranks."""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType

from runner.control.silence import files_of, waits_for_data, waits_for_peers


@dataclass(frozen=True)
class Sight:
    """What all threads of this process were doing at one moment.

    Attributes:
        stacks: Python stacks of all threads.
        place: where the main thread was, as `file:line in function`.
        waits_for_peers: whether it looks as if it waited for other ranks, in a collective or for work queued behind
            one. A guess, from what it was in the middle of. It tells the rank that hangs from those that wait for
            it, which time alone cannot: all of them are silent for equally long.
        waits_for_data: whether it waited for a data worker.
    """

    stacks: str
    place: str
    waits_for_peers: bool
    waits_for_data: bool

    @classmethod
    def now(cls) -> Sight:
        """Look at all threads; takes milliseconds, and no lock."""
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = "\n".join(
            f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
            for ident, frame in frames.items()
        )
        frame: FrameType | None = frames.get(threading.main_thread().ident or 0)
        place = (
            "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        )
        files = files_of(frame)
        return cls(stacks, place, waits_for_peers(files), waits_for_data(files))
