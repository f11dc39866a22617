"""Files and names that are still there after a power cut, and whole for readers on other nodes.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def probe(folder: Path) -> OSError | None:
    """What keeps a small file from being written to `folder`; None where it can be."""
    try:
        path = folder / f".probe-{os.uname().nodename}-{os.getpid()}"
        write_durably(path, b"\0" * 4096)
        path.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems refuse; they sync names on their own
            raise
    finally:
        os.close(fd)


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file that is either absent (or what it was) or complete.

    Raises:
        OSError: it cannot be written, and its name is in the error; nothing is left of the attempt.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several pods share the folder, and each pod counts its processes from 1.
    draft = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)
