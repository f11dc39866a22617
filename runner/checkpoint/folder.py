"""The folder of checkpoints: which names mean what, the commit record, retention.

    step-<N>                    committed: the record was written, everything was synced, then it got this name
    step-<N>.<tag>.partial      being written, or abandoned; never loaded
    step-<N>.damaged-<k>        did not verify or load; set aside for a human
    step-<N>.deleting           on its way out

What a name says is the state: renaming a folder is the only thing here that POSIX file systems (Lustre and NFS
too) do at once or not at all. Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RECORD = "commit.json"
METADATA = ".metadata"
FORMAT = 1
_NAME = re.compile(
    r"step-(\d{1,18})(?:\.(?:(?P<tag>[A-Za-z0-9_-]+)\.)?(?P<state>partial|deleting|damaged-\d+))?"
)
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp|\.metadata")


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the text says what is wrong with it."""


@dataclass(frozen=True)
class Entry:
    """One folder below the checkpoint folder; `state` is committed, partial, damaged or deleting."""

    step: int
    state: str
    path: Path


@dataclass(frozen=True)
class CommitRecord:
    """What a checkpoint consists of; the last file written into it.

    Attributes:
        files: name, size and xxh3_128 of each file, the writing rank, and its items: [tensor name, offsets,
            sizes, container offset, container length, offset of the raw bytes].
        tensors: name -> [dtype, global shape].
        data: streaming state of each rank.
    """

    step: int
    world_size: int
    fingerprint: str
    created: float
    mode: str
    versions: dict[str, str]
    files: list[dict[str, Any]]
    tensors: dict[str, list[Any]]
    data: list[dict[str, Any]] = field(default_factory=list)
    format: int = FORMAT

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file["size"] for file in self.files)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except (
        OSError
    ) as error:  # some network file systems refuse fsync of a folder; they sync names on their own
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def write_record(folder: Path, record: CommitRecord) -> None:
    """Write the commit record, with a checksum of its own, durably."""
    body = json.dumps(asdict(record), separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    write_durably(folder / RECORD, f'{{"sha256":"{digest}","record":{body}}}\n'.encode())


def read_record(folder: Path) -> CommitRecord:
    """Read and check a commit record. Nothing in it is executed or used as a path outside `folder`.

    Raises:
        Damaged: missing, changed, or not what this version writes.
        OSError: the file system says no.
    """
    try:
        text = (folder / RECORD).read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{RECORD} is missing") from None
    head = re.match(rb'\{"sha256":"([0-9a-f]{64})","record":', text)
    if not head or not text.endswith(b"}\n"):
        raise Damaged(f"{RECORD} is not a commit record")
    body = text[head.end() : -2]
    if hashlib.sha256(body).hexdigest().encode() != head[1]:
        raise Damaged(f"{RECORD} does not match its own checksum")
    try:
        value = json.loads(body)
        if value.get("format") != FORMAT:
            raise Damaged(f"{RECORD} has format {value.get('format')}, this version reads {FORMAT}")
        record = CommitRecord(**value)
        _check(record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{RECORD} is malformed: {error}") from error
    return record


def _check(record: CommitRecord) -> None:
    for file in record.files:
        if not _FILE.fullmatch(file["name"]):
            raise ValueError(f"file name {file['name']!r}")
        if not isinstance(file["size"], int) or file["size"] < 0:
            raise ValueError(f"size of {file['name']}")
        for name, offsets, sizes, _, _, raw in file["items"]:
            shape = record.tensors[name][1]
            whole = all(min(o, s) >= 0 and o + s <= n for o, s, n in zip(offsets, sizes, shape, strict=True))
            if not whole or not 0 <= raw <= file["size"]:
                raise ValueError(f"place of {name} in {file['name']}")


def verify_sizes(folder: Path, record: CommitRecord) -> None:
    """Compare the size of every file with the record.

    Raises:
        Damaged: a file is missing or has another size.
    """
    for file in record.files:
        try:
            size = (folder / file["name"]).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"{file['name']} is missing") from None
        if size != file["size"]:
            raise Damaged(f"{file['name']} has {size} bytes, the record says {file['size']}")


class CheckpointFolder:
    """The folder itself. Only one rank calls what changes it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder, and find out now whether a save will be able to write to it.

        Raises:
            OSError: it cannot be made, or not written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        probe = self.root / f".probe-{os.uname().nodename}-{os.getpid()}"  # pods count their processes alike
        probe.touch()
        probe.unlink(missing_ok=True)

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

    def sweep(self) -> list[Path]:
        """Finish deletions that were cut short, and remove abandoned partial folders."""
        removed = []
        for entry in self.entries():
            if entry.state in ("deleting", "partial"):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.path)
        return removed

    def retain(self, keep_last: int, keep_every: int | None, usable: Callable[[Entry], bool]) -> list[int]:
        """Delete what retention does not keep; returns the steps deleted.

        The newest checkpoint that is `usable` stays whatever the settings say, and while none is, nothing goes.
        """
        committed = self.committed()
        keep = {entry.step for entry in committed[-keep_last:]}
        if keep_every:
            keep |= {entry.step for entry in committed if entry.step % keep_every == 0}
        doomed = [entry for entry in committed if entry.step not in keep]
        if not doomed:
            return []
        safe = next((entry.step for entry in reversed(committed) if usable(entry)), None)
        if safe is None:
            return []
        deleted = []
        for entry in doomed:
            if entry.step != safe:
                self.delete(entry)
                deleted.append(entry.step)
        return deleted

    def delete(self, entry: Entry) -> None:
        """Delete a checkpoint; a crash on the way leaves a name that says so."""
        doomed = self.root / f"step-{entry.step}.deleting"
        if doomed.exists():
            shutil.rmtree(doomed)
        entry.path.rename(doomed)
        sync_folder(self.root)
        shutil.rmtree(doomed)


def age(record: CommitRecord) -> float:
    """Seconds since a checkpoint was committed."""
    return max(0.0, time.time() - record.created)
