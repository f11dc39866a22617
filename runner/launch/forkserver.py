"""A process that has imported everything a worker needs and forks one for each that a launcher starts.

Importing torch and transformers takes longer than all the rest of a worker's start, and a respawned worker pays it
again. So the supervisor starts one fork server on its node; what the launcher starts as a worker (`nvrx-worker`) is a
thin client without torch: it hands its environment, arguments and standard streams to the server, which forks the
real worker from them. To the launcher the client is the worker:

- the worker's exit status becomes the client's, signals that kill it included; 0 once the worker's rank is done
  (`control/farewell.py`), whatever ends its process then. A worker that fails is told of as soon
  as it can do nothing any more, and no worker is forked before all that were told of are gone: the launcher gets
  ready for the next start while a GPU's driver clears up behind the last;
- SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 that reach the client go on to the worker;
- where the client dies (SIGKILL by the launcher), the server sees its socket close and kills the worker, also one
  that is stopped or stuck in native code;
- where the server dies, its workers die with it (PR_SET_PDEATHSIG), and clients say so and fail.

Being the parent, the server knows how each worker ended: it leaves that in a file for the supervisor (`how_ended`).

The server never touches CUDA, which does not survive a fork. Standard library only; what is imported before the
first fork is the caller's business.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from runner.control import farewell
from runner.streams import complain
from runner.system.process import LONGEST_KILL, die_with_parent, failing_with

SOCKET = "NVRX_RUN_FORKSERVER"  # path of the server's socket, in the environment of the launcher
_LARGEST_REQUEST = 1 << 20
_BACKLOG = 128
_ENDED = "ended"  # folder beside the socket: one file for each worker that has ended, its exit code inside
_LOOK = 0.02  # seconds between two looks at the workers


def ready_file(socket_path: Path) -> Path:
    """Made by a server that has done its imports."""
    return socket_path.with_name(f"{socket_path.name}.ready")


@dataclass(frozen=True)
class Request:
    """What a client hands over: everything that makes the forked process the one that the launcher started."""

    argv: list[str]
    environment: dict[str, str]
    folder: str


class ForkServer:
    """Accepts clients and forks a worker for each.

    Args:
        path: of the UNIX socket; its folder is private to this run.
    """

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._folder, self._ended = path.parent, path.parent / _ENDED
        self._ended.mkdir(exist_ok=True)
        self._workers: dict[int, int] = {}  # not reaped: process id -> pidfd
        self._clients: dict[int, socket.socket] = {}  # of workers whose end was not told yet: by process id
        self._callers: set[socket.socket] = set()  # have connected and not asked for anything yet
        self._held: dict[socket.socket, float] = {}  # want a worker -> monotonic clock until which they wait
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> Request:
        """Serve until this process is killed; returns in each forked child with what it shall run."""
        gc.collect()
        gc.freeze()  # what is imported stays in pages that parent and children share
        while True:
            for key, _ in self._selector.select(_LOOK if self._workers else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._callers:
                    self._hold(key.fileobj)
                elif key.data[0] == "exit":
                    self._reap(key.data[1])
                else:
                    self._client_gone(key.data[1])
            self._tell_failures()
            for client in self._due():
                request = self._take(client)
                if request is not None:
                    return request

    def _accept(self) -> None:
        """Somebody connects. What it wants is read when it is there: who is frozen here must not hold up the others."""
        client, _ = self._listener.accept()
        self._callers.add(client)
        self._selector.register(client, selectors.EVENT_READ)

    def _hold(self, client: socket.socket) -> None:
        """Somebody wants a worker, or hangs up."""
        self._callers.discard(client)
        self._selector.unregister(client)
        self._held[client] = time.monotonic() + LONGEST_KILL

    def _due(self) -> list[socket.socket]:
        """Those whose worker can be forked: none before it still holds a GPU's memory, a port or a file."""
        leaving = self._workers.keys() - self._clients.keys()
        if not leaving:
            return list(self._held)
        due = [client for client, until in self._held.items() if time.monotonic() > until]
        if due:
            numbers = ", ".join(map(str, sorted(leaving)))
            complain(f"nvrx-worker: process {numbers} has ended, and {LONGEST_KILL:.0f} s were not enough for the "
                     "kernel to clear up behind it; its rank starts without waiting for that")  # fmt: skip
        return due

    def _take(self, client: socket.socket) -> Request | None:
        del self._held[client]
        try:
            message, descriptors, _, _ = socket.recv_fds(client, _LARGEST_REQUEST, 3)
        except ConnectionResetError:
            message, descriptors = b"", []
        request = _request(message)
        # No whole request: too long an environment, say; its client does without. Hung up: it died, or gave up waiting.
        if request is None or len(descriptors) != 3 or _hung_up(client):
            for descriptor in descriptors:
                os.close(descriptor)
            client.close()
            return None
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # the workers that there are must not go with this server
            complain(f"nvrx-worker: no worker can be forked: {error.strerror}")
            pid = -1
        if pid == 0:
            self._become_worker(client, descriptors, request, parent)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            client.close()  # which then does without
            return None
        with contextlib.suppress(OSError):  # of a process that had this number before
            (self._ended / str(pid)).unlink(missing_ok=True)
        farewell.forget(self._folder, pid)
        self._clients[pid] = client
        self._workers[pid] = os.pidfd_open(pid)
        self._selector.register(self._workers[pid], selectors.EVENT_READ, ("exit", pid))
        self._selector.register(client, selectors.EVENT_READ, ("client", pid))
        _send(client, {"pid": pid})
        return None

    def _become_worker(
        self, client: socket.socket, descriptors: list[int], request: Request, parent: int
    ) -> None:
        die_with_parent(parent)
        os.setsid()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()
        self._listener.close()
        client.close()
        for other in (*self._clients.values(), *self._callers, *self._held):
            other.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.argv = list(request.argv)

    def _tell_failures(self) -> None:
        for pid in list(self._clients):
            code = failing_with(pid)
            if code is not None:
                self._tell(pid, code)

    def _reap(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        pidfd = self._workers.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._tell(pid, os.waitstatus_to_exitcode(status))

    def _tell(self, pid: int, code: int) -> None:
        """A worker's end, to the supervisor and to its client."""
        with contextlib.suppress(OSError):  # a full disk: the launcher says it, too
            draft = self._ended / f"{pid}.partial"
            draft.write_text(str(code))
            draft.replace(self._ended / str(pid))
        client = self._clients.pop(pid, None)
        if client is not None:
            self._selector.unregister(client)
            _send(client, {"exit": 0 if farewell.is_done(self._folder, pid) else code})
            client.close()

    def _client_gone(self, pid: int) -> None:
        """The launcher has killed the client: the worker goes the same way.

        Its children follow by themselves. To kill its whole group would take multiprocessing's resource tracker along,
        which is about to remove the worker's semaphores.
        """
        client = self._clients.pop(pid, None)
        if client is None:  # its worker's end was seen in the same round
            return
        self._selector.unregister(client)
        client.close()
        with contextlib.suppress(ProcessLookupError):  # it may have ended in the same moment
            os.kill(pid, signal.SIGKILL)


def how_ended(folder: Path, pid: int) -> int | None:
    """How a worker that was forked here ended.

    Args:
        folder: of the server's socket.
        pid: the worker.

    Returns:
        Its exit code, negative for a signal; None where it lives, or no server forked it.
    """
    try:
        return int((folder / _ENDED / str(pid)).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _request(message: bytes) -> Request | None:
    """What a client asks for; None where that is no whole request."""
    try:
        return Request(**json.loads(message))
    except (ValueError, TypeError):
        return None


def _hung_up(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLHUP)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _send(client: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(
        BrokenPipeError, ConnectionResetError
    ):  # seen as `_client_gone` in the next round
        client.sendall(json.dumps(message).encode())
