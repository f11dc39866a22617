"""The TCP sockets of this process, and closing some of them under whoever waits on them.

Gloo has no abort: `abort()`, `shutdown()` and `destroy_process_group()` return at once and leave a blocked collective
waiting for its timeout. Shutting its sockets down makes the collective raise at once, and its peers' as well.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class OpenSocket:
    """A descriptor and the socket behind it; the inode tells whether the number has been used again since."""

    fd: int
    inode: int


def _target(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - not a path but `socket:[inode]`


def tcp_sockets() -> frozenset[OpenSocket]:
    """All TCP sockets of this process, listeners included."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are what is wanted
        try:
            target = _target(int(name))
        except FileNotFoundError:  # closed meanwhile, or the listing's own descriptor
            continue
        if target.startswith("socket:[") and _is_tcp(int(name)):
            found.add(OpenSocket(int(name), int(target[8:-1])))
    return frozenset(found)


def _view(fd: int) -> socket.socket:
    """A socket object on a copy of the descriptor, so that closing the object leaves the original alone."""
    return socket.socket(fileno=os.dup(fd))


def _is_tcp(fd: int) -> bool:
    try:
        with _view(fd) as view:
            return view.family in (socket.AF_INET, socket.AF_INET6) and view.type == socket.SOCK_STREAM
    except OSError:
        return False


def clients_of(port: int) -> frozenset[OpenSocket]:
    """This process's connections to a server on `port`; not what such a server has accepted in this process."""
    found = set()
    for candidate in tcp_sockets():
        try:
            with _view(candidate.fd) as view:
                if view.getpeername()[1] == port and view.getsockname()[1] != port:
                    found.add(candidate)
        except OSError:  # not connected
            continue
    return frozenset(found)


def shut_down(sockets: frozenset[OpenSocket], *, spare_ports: frozenset[int] = frozenset()) -> int:
    """Shut the connected ones among `sockets` down in both directions; returns how many.

    Listeners, sockets closed since, and connections from or to one of `spare_ports` are left alone. The
    descriptors stay open: their owner still closes them.
    """
    count = 0
    for candidate in sockets:
        try:
            if _target(candidate.fd) != f"socket:[{candidate.inode}]":
                continue
            with _view(candidate.fd) as view:
                if {view.getsockname()[1], view.getpeername()[1]} & spare_ports:
                    continue
                view.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:  # closed meanwhile, a listener (no peer), or already disconnected
            continue
    return count
