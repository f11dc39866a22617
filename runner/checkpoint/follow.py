"""The first thing a writer process does, before it imports anything slow: it binds its life to its rank's.

Run as the spawned process's main module (see `nvrx_queue`). Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_VARIABLE = "NVRX_WRITER_PARENT"  # process id of the rank
_PR_SET_PDEATHSIG = 1


def follow_parent(expected: int) -> None:
    """Die when the process `expected`, which must be the parent, dies; whatever ends it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected:  # it went before the kernel was told
        os._exit(1)


if __name__ == "__mp_main__":
    follow_parent(int(os.environ.pop(PARENT_VARIABLE)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the rank, which then stops us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a rank that is asked to stop still saves
