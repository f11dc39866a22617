"""The first thing a writer process does, before it imports anything slow: it binds its life to its rank's.

Run as the spawned process's main module (see `nvrx_queue`). Standard library only.
"""

from __future__ import annotations

import os
import signal

from runner.system.process import die_with_parent

PARENT_VARIABLE = "NVRX_WRITER_PARENT"  # process id of the rank

if __name__ == "__mp_main__":
    die_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the rank, which then stops us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a rank that is asked to stop still saves
