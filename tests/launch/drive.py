"""`python drive.py BIN RECIPE [--verbose]`: the supervisor, with the console scripts of the folder BIN.

With TINY_STOP_AT_ONCE both its processes get SIGTERM in the moment in which there are two.
"""

import os
import signal
import sys
from pathlib import Path

from runner.launch.supervisor import run
from runner.recipe.load import load_recipe


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


if __name__ == "__main__":
    sys.executable = str(Path(sys.argv[1]) / "python")
    loaded = load_recipe(sys.argv[2])
    if "TINY_STOP_AT_ONCE" in os.environ:
        strike_when_forked()
    sys.exit(run(loaded, verbose="--verbose" in sys.argv))
