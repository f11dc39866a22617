"""The fork server beside a launcher: workers start from imports that are made once a node, also when they start again.

They are made while the launcher makes its own, so the first start is shorter, too.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.launch import children
from runner.launch.control import Control
from runner.launch.forkserver import SOCKET


@dataclass(frozen=True)
class Beside:
    """What runs beside the launcher, and what the launcher must know of it."""

    environment: dict[str, str]
    processes: tuple[subprocess.Popen[bytes], ...]


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
    worker = str(Path(sys.executable).parent / "nvrx-worker")
    argv = fork_server_argv(worker, socket, recipe_path)
    server = children.start(argv, environment, output, folder=Path.cwd())
    try:
        yield Beside({SOCKET: str(socket)}, (server,))
    finally:
        server.kill()
        server.wait()
