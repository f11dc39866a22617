"""The fork server beside a launcher: workers start from imports that are made once a node, also when they start again.

They are made while the launcher makes its own, so the first start is shorter, too.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.control.channel import START_TIMEOUT, Control
from runner.launch import children
from runner.launch.forkserver import SOCKET, ready_file
from runner.system.process import LONGEST_KILL, failing_with

_GRACE = 1.0  # seconds until its stacks are written


@dataclass(frozen=True)
class Beside:
    """What runs beside the launcher, and what the launcher must know of it.

    Attributes:
        look: to be called all along; True once, when a server that hung in its imports was killed. Workers that wait
            for it then make their own.
        killed: to be called all along; once, when somebody else has killed the server, its status: negative. Workers
            that start again then make their own imports.
    """

    environment: dict[str, str]
    processes: tuple[subprocess.Popen[bytes], ...]
    look: Callable[[], bool] = lambda: False
    killed: Callable[[], int] = lambda: 0


@contextlib.contextmanager
def fork_server(
    recipe_path: Path, environment: Mapping[str, str], output: IO[bytes], control: Control
) -> Iterator[Beside]:
    """Run a fork server; nothing where there is no control folder to listen in."""
    if control.folder is None:
        yield Beside({}, ())
        return
    from runner.train.worker import fork_server_argv

    socket = control.folder / "fork-server"
    for left in (socket, ready_file(socket)):  # by the server of this command's last launch, which was killed
        left.unlink(missing_ok=True)
    worker = str(Path(sys.executable).parent / "nvrx-worker")
    argv = fork_server_argv(worker, socket, recipe_path)
    server = children.start(argv, environment, output, folder=Path.cwd())
    try:
        until = time.monotonic() + float(environment[START_TIMEOUT]) + _GRACE

        known = False  # that it has ended

        def look() -> bool:
            nonlocal known
            hangs = time.monotonic() > until and server.poll() is None and not ready_file(socket).exists()
            if hangs:
                _kill(server)
                known = True
            return hangs

        def killed() -> int:
            nonlocal known
            # The kernel ends its children before this process can wait for it.
            status = 0 if known else server.poll() or failing_with(server.pid) or 0
            known = known or status < 0
            return min(status, 0)

        yield Beside({SOCKET: str(socket)}, (server,), look, killed)
    finally:
        _kill(server)


def _kill(server: subprocess.Popen[bytes]) -> None:
    """Where the kernel does not let it go (imports from storage that hangs), nobody waits for it."""
    server.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(LONGEST_KILL)
