"""The thin client that a launcher takes for its worker; see `forkserver.py`. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from runner.launch.forkserver import Request

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_LONGEST_WAIT = 0.5  # seconds


def run_as_client(path: str, fall_back: Callable[[], int], *, patience: float = 60.0) -> int:
    """Have the server run this process's command and return its exit code; dies of the signal that killed it.

    Args:
        path: of the server's socket.
        fall_back: runs the command in this process; used, with a word on standard error, where no server answers.
        patience: seconds to wait for a server that is still importing.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.settimeout(patience)
    worker: list[int] = []
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if worker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker[0], number)
        else:
            early.append(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    began = time.monotonic()
    try:
        server.connect(path)
        request = Request(sys.argv, dict(os.environ), str(Path.cwd()))
        socket.send_fds(server, [json.dumps(request.__dict__).encode()], [0, 1, 2])
        answer = _receive(server)
        worker.append(answer["pid"])
    except (OSError, KeyError) as error:
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        waited = time.monotonic() - began
        server.close()  # a request that was sent and not yet read must not be served after all
        sys.stderr.write(f"nvrx-worker: the fork server at {path} does not answer ({error}, {waited:.1f} s); "
                         "starting without it\n")  # fmt: skip
        return fall_back()
    for received in early:
        forward(received, None)
    code = _await_end(server).get("exit")
    if code is None:
        sys.stderr.write("nvrx-worker: the fork server died, and its workers with it\n")
        return 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


def _await_end(server: socket.socket) -> dict[str, int]:
    """What the server says when the worker has ended; nothing where the server itself has.

    Python runs a signal's handler between two of its own steps: one that arrives just before a wait begins is not
    forwarded until that wait is over. So no wait is long.
    """
    server.settimeout(_LONGEST_WAIT)
    while True:
        with contextlib.suppress(TimeoutError):
            return _receive(server)


def _receive(server: socket.socket) -> dict[str, int]:
    message = server.recv(4096)
    answer: dict[str, int] = json.loads(message) if message else {}
    return answer
