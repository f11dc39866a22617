"""Free TCP ports. Standard library only."""

from __future__ import annotations

import socket


def free_port(host: str = "") -> int:
    """A TCP port of the kernel's choice that nobody listens on at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server may listen on `port`, on all addresses of this node."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
