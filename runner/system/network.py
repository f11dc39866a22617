"""TCP ports for servers that start later. Standard library only."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port on all addresses of this node, kept for a server of ours until that listens on it.

    A number that was merely found free may be another's before a launcher has imported torch. Here it is bound and
    not listened on: the kernel gives it to no other socket, whether that connects or asks for any port, and refuses
    it to most that name it. A server that names it and sets SO_REUSEADDR, as torch's TCPStore does, gets it, in any
    process.

    Args:
        number: of the port; 0 for one of the kernel's choice.

    Raises:
        OSError: it is taken.
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", number))
        except OSError:
            self._socket.close()
            raise
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Give it back; a server that has it keeps it."""
        self._socket.close()
