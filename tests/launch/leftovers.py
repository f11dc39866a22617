"""Processes that belong to a run, for tests that look for what is left behind."""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes whose environment or arguments name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) == os.getpid():
            continue
        try:
            command = (path / "cmdline").read_bytes()
            text = command + (path / "environ").read_bytes() + str((path / "cwd").readlink()).encode()
        except OSError:
            continue
        if str(folder).encode() in text:
            found.append(command.replace(b"\0", b" ").decode())
    return found
