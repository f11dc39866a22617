"""Fixtures of the checkpoint tests, and the check that no test leaves a process or shared memory behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SHARED_MEMORY = Path("/dev/shm")


def mount(folder: Path, options: str) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True
    )


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 768 KiB."""
    folder = tmp_path_factory.mktemp("small")
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount(folder, "size=768k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def ours() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(("nvrx-", "sem.mp-"))}


def writers() -> set[int]:
    """Writer processes: spawned Pythons below this test, or orphaned."""
    found = set()
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = process.info["cmdline"] or []
        if any("multiprocessing.spawn" in part for part in command) and any(
            "spawn_main" in part for part in command
        ):
            found.add(process.pid)
    return found


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    processes, files = writers(), {name for name in ours() if name.startswith("nvrx-")}
    yield
    end = time.monotonic() + 10
    while time.monotonic() < end and (
        writers() - processes or {n for n in ours() if n.startswith("nvrx-")} - files
    ):
        time.sleep(0.2)
    assert not writers() - processes
    assert not {name for name in ours() if name.startswith("nvrx-")} - files
