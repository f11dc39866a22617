"""The commit record: what a checkpoint consists of. Written last, trusted only where its own checksum holds.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import stat
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from runner.system.durable import write_durably

RECORD = "commit.json"
METADATA = ".metadata"
FORMAT = 1
_FOLDER = re.compile(r"step-(\d+)(?:\.|$)")
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp|\.metadata")


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the text says what is wrong with it."""


class OtherFormat(Damaged):
    """The record verifies and is another version's: nobody here can load it, and nothing is wrong with it."""


class WrongFiles(Damaged):
    """Files are missing, are no files, or have another size, as this node sees them.

    Attributes:
        files: name -> what is wrong with it.
    """

    def __init__(self, files: dict[str, str]) -> None:
        more = f" (and {len(files) - 1} more files)" if len(files) > 1 else ""
        super().__init__(next(iter(files.values())) + more)
        self.files = files


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
        Damaged: missing or no file (`WrongFiles`), changed, of another step, or not what this version writes.
        OSError: the file system says no, which says nothing about the checkpoint.
    """
    look_for_record(folder)  # what is no file (a pipe, say) is not opened
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
            raise OtherFormat(f"{RECORD} has format {value.get('format')}, this version reads {FORMAT}")
        known = {one.name for one in fields(CommitRecord)}  # a later version of the same format may say more
        record = CommitRecord(**{name: what for name, what in value.items() if name in known})
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


def look_for_record(folder: Path) -> None:
    """See the commit record, without reading it.

    Raises:
        WrongFiles: it is missing, or no file.
        OSError: the file system says no.
    """
    _look(folder, {RECORD: None})


def verify_sizes(folder: Path, record: CommitRecord) -> None:
    """Compare the size of every file with the record.

    Raises:
        WrongFiles: files are missing, no files, or have another size.
        OSError: the file system says no.
    """
    _look(folder, {file["name"]: file["size"] for file in record.files})


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint's record verifies and its files have their sizes; their checksums are not compared.

    Raises:
        OSError: the file system says no.
    """
    try:
        verify_sizes(folder, read_record(folder))
    except Damaged:
        return False
    return True


def looks_whole(folder: Path) -> bool:
    """`is_whole`, and the file system does not say no."""
    try:
        return is_whole(folder)
    except OSError:
        return False


def _look(folder: Path, sizes: dict[str, int | None]) -> None:
    wrong = _wrong(folder, sizes)
    if wrong:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            list(folder.iterdir())  # to open a folder makes an NFS client ask its server again
        wrong = _wrong(folder, sizes)
    if wrong:
        raise WrongFiles(wrong)


def _wrong(folder: Path, sizes: dict[str, int | None]) -> dict[str, str]:
    """What is wrong with which file; a size of None is not compared."""
    found = {name: _problem(folder / name, size) for name, size in sizes.items()}
    return {name: problem for name, problem in found.items() if problem}


def _problem(path: Path, size: int | None) -> str:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path.name} is missing"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{path.name} is a link to itself"
        raise
    if not stat.S_ISREG(found.st_mode):
        return f"{path.name} is not a file"
    if size is not None and found.st_size != size:
        return f"{path.name} has {found.st_size} bytes, the record says {size}"
    return ""
