"""`python drive.py BIN RECIPE [--verbose]`: the supervisor, with the console scripts of the folder BIN.

With TINY_STOP_AT_ONCE both its processes get SIGTERM in the moment in which there are two, with TINY_FREEZE_COMMAND the
first one gets SIGSTOP when the other one is about to end.
"""

import os
import signal
import sys
import time
from pathlib import Path

from runner.launch.session import Session
from runner.launch.supervisor import run
from runner.recipe.load import load_recipe
from runner.system.process import state_of


def strike_when_forked() -> None:
    fork = os.fork

    def forked() -> int:
        os.fork = fork
        child = fork()
        if child:
            for pid in (child, os.getpid()):
                os.kill(pid, signal.SIGTERM)
        return child

    os.fork = forked


def freeze_at_the_end() -> None:
    run_session = Session.run

    def run(session: Session) -> int:
        code = run_session(session)
        os.kill(os.getppid(), signal.SIGSTOP)
        while state_of(os.getppid()) != "T":
            time.sleep(0.01)
        return code

    Session.run = run


if __name__ == "__main__":
    sys.executable = str(Path(sys.argv[1]) / "python")
    loaded = load_recipe(sys.argv[2])
    if "TINY_STOP_AT_ONCE" in os.environ:
        strike_when_forked()
    if "TINY_FREEZE_COMMAND" in os.environ:
        freeze_at_the_end()
    sys.exit(run(loaded, verbose="--verbose" in sys.argv))
