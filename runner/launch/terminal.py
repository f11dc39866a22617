"""How rank 0's log reaches the user's terminal while all that the launchers print goes to a file.

The supervisor names its own standard output in the environment, as a file that can be opened; rank 0 opens it in
place of the one that it inherited. So a terminal stays a terminal, for progress bars as well.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import threading

from runner.control.channel import TERMINAL


def append_to_files() -> None:
    """Where standard output or error is a plain file, its writers append: several processes write it, and an offset
    of one's own, as after `> log 2>&1`, would overwrite what the others have written."""
    for descriptor in (1, 2):
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        except OSError:  # closed
            continue


def offer_terminal() -> str:
    """Called by the supervisor: a path through which its workers can write to its standard output."""
    descriptor = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # a socket cannot be opened by path: a pipe before it can
        reader, writer = os.pipe()
        threading.Thread(target=_pump, args=(reader, descriptor), daemon=True).start()
        descriptor = writer
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _pump(source: int, target: int) -> None:
    read = True
    while data := os.read(source, 1 << 16):
        while data and read:
            try:
                data = data[os.write(target, data) :]
            except (
                OSError
            ):  # nobody reads any more; the pipe is emptied all the same, or training would wait for it
                read = False


def take_terminal(rank: int) -> bool:
    """Called by a worker before its first output: rank 0 writes to the supervisor's terminal from now on.

    Returns whether it does; where nobody offers one, output stays where the launcher has put it.
    """
    path = os.environ.get(TERMINAL)
    if not path or rank != 0:
        return False
    try:
        # Append: a plain file is written by several processes, each with an offset of its own.
        terminal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        sys.stderr.write(f"cannot write to the terminal of nvrx-run ({path}: {error})\n")
        return False
    sys.stdout.flush()
    os.dup2(terminal, 1)
    os.close(terminal)
    return True
