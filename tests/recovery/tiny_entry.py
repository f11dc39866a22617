"""What launchers start as the tiny worker: like `nvrx-worker` a client of a fork server, where there is one.

`python tiny_entry.py RECIPE`, or `python tiny_entry.py --fork-server SOCKET RECIPE` for that server. torch and the rest
are imported once in it, not in every worker of every test.
"""

import os
import sys
import warnings
from pathlib import Path

from runner.launch.forkclient import run_as_client
from runner.launch.forkserver import SOCKET, ForkServer, ready_file
from runner.system.process import die_with_parent

sys.path.insert(0, str(Path(__file__).parent))  # launchers set PYTHONSAFEPATH


def work() -> int:
    import tiny_worker

    tiny_worker.main()
    return 0


def serve(socket: Path) -> int:
    die_with_parent(os.getppid())
    server = ForkServer(socket)
    warnings.simplefilter("ignore")  # their place in the launcher's log would be a matter of luck
    import tiny_worker  # noqa: F401

    ready_file(socket).touch()
    server.serve()
    return work()  # only forked workers come here


def main() -> int:
    if sys.argv[1] == "--fork-server":
        return serve(Path(sys.argv[2]))
    server = os.environ.get(SOCKET)
    return run_as_client(server, work) if server else work()


if __name__ == "__main__":
    sys.exit(main())
