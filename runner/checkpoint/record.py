"""The commit record: what a checkpoint consists of. Written last, trusted only where its own checksum holds.

Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.launch.durable import write_durably

RECORD = "commit.json"
METADATA = ".metadata"
FORMAT = 1
_FOLDER = re.compile(r"step-(\d+)(?:\.|$)")
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp|\.metadata")


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the text says what is wrong with it."""


@dataclass(frozen=True)
class CommitRecord:
    """What a checkpoint consists of; the last file written into it.

    Attributes:
        files: name, size and xxh3_128 of each file, the writing rank, and its items: [tensor name, offsets,
            sizes, container offset, container length, offset of the raw bytes].
        tensors: name -> [dtype, global shape].
        data: streaming state of each rank.
        decided: `TrainState.decided` of the life that wrote it; empty in records of versions that did not keep it.
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
    decided: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file["size"] for file in self.files)


def write_record(folder: Path, record: CommitRecord) -> None:
    """Write the commit record, with a checksum of its own, durably."""
    body = json.dumps(asdict(record), separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    write_durably(folder / RECORD, f'{{"sha256":"{digest}","record":{body}}}\n'.encode())


def read_record(folder: Path) -> CommitRecord:
    """Read and check a commit record. Nothing in it is executed or used as a path outside `folder`.

    Args:
        folder: one named after a step, whatever its state, holds the record of that step and no other's.

    Raises:
        Damaged: missing, no file, changed, of another step, or not what this version writes.
        OSError: the file system says no, which says nothing about the checkpoint.
    """
    _size(folder / RECORD)  # what is no file (a pipe, say) is not opened
    text = (folder / RECORD).read_bytes()
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
    named = _FOLDER.match(folder.name)
    if named and int(named[1]) != record.step:
        raise Damaged(f"{folder.name} holds the record of step {record.step}")
    return record


def _check(record: CommitRecord) -> None:
    record.decided.items()  # an object
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
        Damaged: a file is missing, no file, or has another size.
        OSError: the file system says no.
    """
    for file in record.files:
        size = _size(folder / file["name"])
        if size != file["size"]:
            raise Damaged(f"{file['name']} has {size} bytes, the record says {file['size']}")


def looks_whole(folder: Path) -> bool:
    """Whether a checkpoint's record verifies and its files have their sizes; their checksums are not compared."""
    try:
        verify_sizes(folder, read_record(folder))
    except (Damaged, OSError):
        return False
    return True


def _size(path: Path) -> int:
    """Bytes of a regular file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Damaged(f"{path.name} is a link to itself") from None
        raise
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is not a file")
    return found.st_size
