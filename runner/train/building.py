"""A folder that is built beside its target and gets the target's name once it is whole. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import InputError
from runner.system.durable import sync_folder

MARKER = ".nvrx-building"  # locked by the process that builds; holds the name of its node
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def refuse_existing(target: Path) -> None:
    """A target that is there is nobody's to replace.

    Raises:
        InputError: it is there.
    """
    if target.exists():
        raise InputError(f"{target} exists; name another folder with --output")


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which is renamed to `target` at the end, and removed on an error.

    Its name is its own: several may build for one target at once, and the first that is done gets the name. Those of
    killed processes are removed, and nothing else: they are told by their marker, whose lock nobody holds any more.

    Raises:
        InputError: the target is there, at the end at the latest.
        OSError: the file system says no.
    """
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    folder = target.with_name(f"{target.name}.{secrets.token_hex(8)}.partial")
    folder.mkdir()
    marker = folder / MARKER
    try:
        with marker.open("x", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.write(os.uname().nodename)  # only now: what has no name of a node in it is left alone
            lock.flush()
            yield folder
            sync_folder(folder)
            try:
                refuse_existing(target)
                folder.rename(target)
            except OSError as error:
                if error.errno in _TAKEN:
                    raise InputError(f"{target} exists; name another folder with --output") from error
                raise
            (target / MARKER).unlink()
            sync_folder(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not there any more where all went well


def _remove_left(target: Path) -> None:
    """Remove what killed processes of this node have left of the same target. On other nodes a lock may say nothing."""
    for folder in target.parent.glob(f"{glob.escape(target.name)}.{'?' * 16}.partial"):
        try:
            with (folder / MARKER).open("r+", encoding="utf-8", errors="replace") as lock:
                if lock.read() != os.uname().nodename:
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:  # no marker of ours, or somebody builds in it, or it is not ours to remove
            continue
