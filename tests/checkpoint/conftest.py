"""Fixtures of the checkpoint tests, and the check that no test leaves a process or shared memory behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ckpt_disk import mount
from ckpt_world import World

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 768 KiB."""
    folder = tmp_path_factory.mktemp("small")
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount(folder, "size=768k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def left_processes() -> list[str]:
    """Processes of this test session's worlds, other than the one that forks them."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ, command = process.info["environ"] or {}, " ".join(process.info["cmdline"] or [])
        helper = "forkserver import main" in command or "resource_tracker" in command
        if environ.get("CKPT_SESSION") == str(os.getpid()) and process.pid != os.getpid() and not helper:
            found.append(f"{process.pid} {command[:100]}")
    return found


def left_files() -> list[str]:
    return sorted(path.name for path in SHARED_MEMORY.glob(f"nvrx-test{os.getpid()}-*"))


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    yield
    end = time.monotonic() + 10
    while time.monotonic() < end and (left_processes() or left_files()):
        time.sleep(0.2)
    files = left_files()
    for name in files:  # told once, not to every module that follows
        (SHARED_MEMORY / name).unlink()
    assert left_processes() == []
    assert files == []


@pytest.fixture(scope="module")
def one() -> Iterator[World]:
    """A world of one rank; what does not end by itself is killed on leaving."""
    with World(1) as world:
        yield world


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    """A world of two ranks."""
    with World(2) as world:
        yield world
