"""The folder of checkpoints: which names mean what, and what goes when.

    step-<N>                    committed: the record was written, everything was synced, then it got this name
    step-<N>.<tag>.partial      being written, or abandoned; never loaded
    step-<N>.damaged-<k>        did not verify or load; set aside for a human
    step-<N>.deleting           on its way out

What a name says is the state: renaming a folder is the only thing here that POSIX file systems (Lustre and NFS
too) do at once or not at all. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InputError
from runner.system.durable import sync_folder

_NAME = re.compile(
    r"step-(0|[1-9]\d{0,17})(?:\.(?:(?P<tag>[A-Za-z0-9_-]+)\.)?(?P<state>partial|deleting|damaged-\d+))?"
)
_RIVALS = 1000  # files that another process may remove under our hands before that counts as an error

Failure = tuple[Path, str]  # what could not be removed, and why


@dataclass(frozen=True)
class Entry:
    """One folder below the checkpoint folder; `state` is committed, partial, damaged or deleting."""

    step: int
    state: str
    path: Path


class CheckpointFolder:
    """The folder itself. Only one rank calls what changes it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder, and find out now whether a save will be able to write to it.

        Raises:
            OSError: it cannot be made, or not written.
            InputError: something that is no folder has the name of a committed checkpoint, which a save would need.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        probe = self.root / f".probe-{os.uname().nodename}-{os.getpid()}"  # pods count their processes alike
        probe.touch()
        probe.unlink(missing_ok=True)
        for entry in self.entries():
            # In this order: one that retention deletes meanwhile is no folder, and then not there either.
            if entry.state == "committed" and not entry.path.is_dir() and os.path.lexists(entry.path):
                kind = "a link that leads to no folder" if entry.path.is_symlink() else "not a folder"
                raise InputError(
                    f"checkpoint.folder: {entry.path} is {kind}, and the checkpoint of step {entry.step} would have "
                    "that name; move it away"
                )

    def entries(self) -> list[Entry]:
        """Everything here that is a checkpoint in some state, by step.

        Raises:
            OSError: the folder is not readable, or not a folder. A missing folder is empty.
        """
        found = []
        try:
            names = sorted(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                state = (match["state"] or "committed").partition("-")[0]
                found.append(Entry(int(match[1]), state, self.root / name))
        return sorted(found, key=lambda entry: (entry.step, entry.path.name))

    def committed(self) -> list[Entry]:
        """Committed checkpoints, oldest first (numeric order)."""
        return [entry for entry in self.entries() if entry.state == "committed" and entry.path.is_dir()]

    def path(self, step: int) -> Path:
        """Where the committed checkpoint of `step` lies."""
        return self.root / f"step-{step}"

    def look(self, step: int) -> None:
        """See the committed checkpoint of `step`.

        Raises:
            OSError: it, or the whole folder, is not there for this node, or the file system says no.
        """
        try:
            self.path(step).stat()
        except FileNotFoundError:
            list(self.root.iterdir())  # to open a folder makes an NFS client ask its server again
            self.path(step).stat()

    def partial(self, step: int, tag: str) -> Path:
        """Where a save writes; `tag` keeps saves of different lives apart."""
        return self.root / f"step-{step}.{tag}.partial"

    def commit(self, partial: Path, step: int) -> Path:
        """Give a finished partial folder its name.

        Raises:
            OSError: the file system says no, or `step` is committed already.
        """
        sync_folder(partial)
        final = self.path(step)
        partial.rename(final)
        sync_folder(self.root)
        return final

    def set_aside(self, step: int) -> Path:
        """Rename a committed checkpoint so that it is not tried again."""
        for number in range(1, 10_000):
            target = self.root / f"step-{step}.damaged-{number}"
            if not target.exists():
                self.path(step).rename(target)
                sync_folder(self.root)
                return target
        raise OSError(errno.EEXIST, f"too many damaged copies of step {step} in {self.root}")

    def sweep(self) -> tuple[list[Path], list[Failure]]:
        """Finish deletions that were cut short, and remove abandoned partial folders.

        Returns:
            what was removed, and what could not be, with the reason.
        """
        removed: list[Path] = []
        failures: list[Failure] = []
        for entry in self.entries():
            if entry.state in ("deleting", "partial"):
                try:
                    remove_tree(entry.path)
                except OSError as error:
                    failures.append((entry.path, _words(error)))
                else:
                    removed.append(entry.path)
        return removed, failures

    def retain(
        self, keep_last: int, keep_every: int | None, usable: Callable[[Entry], bool]
    ) -> tuple[list[int], list[Failure]]:
        """Delete what retention does not keep.

        The newest checkpoint that is `usable` stays whatever the settings say, and while none is, nothing goes. One
        that cannot be deleted does not keep the others from it.

        Returns:
            the steps deleted, and what could not be deleted, with the reason.

        Raises:
            OSError: the folder cannot be read.
        """
        committed = self.committed()
        keep = {entry.step for entry in committed[-keep_last:]}
        if keep_every:
            keep |= {entry.step for entry in committed if entry.step % keep_every == 0}
        doomed = [entry for entry in committed if entry.step not in keep]
        deleted: list[int] = []
        failures: list[Failure] = []
        safe = next((entry.step for entry in reversed(committed) if usable(entry)), None) if doomed else None
        if safe is None:
            return deleted, failures
        for entry in doomed:
            if entry.step == safe:
                continue
            try:
                self.delete(entry)
            except OSError as error:
                failures.append((entry.path, _words(error)))
            else:
                deleted.append(entry.step)
        return deleted, failures

    def delete(self, entry: Entry) -> None:
        """Delete a checkpoint; a crash on the way leaves a name that says so.

        Raises:
            OSError: it cannot be renamed, or something in it cannot be removed.
        """
        doomed = self.root / f"step-{entry.step}.deleting"
        if doomed.exists():
            remove_tree(doomed)
        entry.path.rename(doomed)
        sync_folder(self.root)
        remove_tree(doomed)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it. Somebody else may be removing it too.

    Raises:
        OSError: something in it cannot be removed.
    """
    for _ in range(_RIVALS):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if folder.exists():
                continue  # a file of it was removed under our hands
        return
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))


def _words(error: OSError) -> str:
    """What the system says, and about which file."""
    said = error.strerror or str(error)
    return f"{said}: {error.filename}" if error.filename else said
