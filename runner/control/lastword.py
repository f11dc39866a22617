"""Room for a worker's outcome, reserved while there is some.

Outcomes go to the run's folder, where all nodes see them. A worker that meets a full disk there would end without a
word, and its supervisor could only say that it vanished. So each worker keeps a small file in the node-local control
folder, whose blocks are its own from the start: to write into it takes no new ones. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOM = 16 << 10  # bytes
_FOLDER = "words"


class LastWord:
    """One worker's reserved file; none where there is no control folder, or no room in it either.

    Args:
        control: the control folder.
    """

    def __init__(self, control: Path | None) -> None:
        self._path: Path | None = None
        self._used = False
        if control is None:
            return
        path = control / _FOLDER / f"{os.getpid()}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, ROOM)
        except OSError:
            return
        self._path = path

    def write(self, text: str) -> bool:
        """Write `text`, ASCII of at most `ROOM` bytes. False where nothing was reserved, or that failed too."""
        data = text.encode("ascii")
        if self._path is None or len(data) > ROOM:
            return False
        try:
            with self._path.open("r+b") as file:
                file.write(data)
        except OSError:
            return False
        self._used = True
        return True

    def close(self) -> None:
        """Give the room back where nothing was said."""
        if self._path is not None and not self._used:
            self._path.unlink(missing_ok=True)


def last_words(control: Path) -> dict[str, bytes]:
    """By name of the file, what workers of this node have written so far."""
    folder = control / _FOLDER
    if not folder.is_dir():
        return {}
    said = {}
    for path in folder.iterdir():
        try:
            text = path.read_bytes().rstrip(b"\0")
        except FileNotFoundError:  # its worker has left without a need for it
            continue
        if text:
            said[path.name] = text
    return said
