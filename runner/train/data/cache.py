"""The files of packed tokens, written with checksums and read with them.

    tokens.bin   every token once
    blocks.bin   the xxh3-64 of each 64 KiB of tokens.bin
    index.json   counts, sizes and the checksum of blocks.bin; written last

A cache may hold 100 GB, and every process of every life opens it: to read all of it each time would cost minutes. So
the index and the sizes are checked when it is opened, and a block whenever something in it is read. That takes some
microseconds a sequence, and no token that was not written here reaches the model.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from runner.errors import InputError
from runner.strictjson import parse
from runner.system.durable import write_durably

TOKENS, BLOCKS, INDEX = "tokens.bin", "blocks.bin", "index.json"
BLOCK = 1 << 16  # bytes of tokens under one checksum
_SUM = 8  # bytes of one checksum
_DTYPES = ("uint16", "uint32")
_CHECK_AT_ONCE = 64 << 20  # bytes that are read in a tenth of a second or two
_NO_FILE = {errno.EISDIR: "is a folder", errno.ELOOP: "is a link to itself"}


def _said(message: str, name: str) -> str:
    """The message itself, out of what torch's loader makes of an error in a data worker: its traceback ends in it."""
    lines = [line for line in message.splitlines() if line.strip()]
    return lines[-1].rpartition(f"{name}: ")[2] if lines else message


class DamagedCacheError(InputError):
    """Prepared data are not what was written. Not mended here: to make them anew may take hours, and asks a hub."""

    def __init__(self, message: str) -> None:
        super().__init__(_said(message, type(self).__name__))


class UnreadableCacheError(RuntimeError):
    """Storage does not give what lies in a cache; another try may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(_said(message, type(self).__name__))


def _damaged(path: Path, what: str) -> DamagedCacheError:
    return DamagedCacheError(
        f"{path}: {what}; remove the folder {path.parent}: the next run, or nvrx-data RECIPE, makes the data anew"
    )


@contextlib.contextmanager
def _reading(path: Path, missing: str = "is missing") -> Iterator[None]:
    """Tell a cache in which something else lies in a file's place, which is damage, from storage that is unwell."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise _damaged(path, missing) from None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _damaged(path, _NO_FILE[error.errno]) from None
        raise UnreadableCacheError(f"{path}: cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class CacheIndex:
    """What `index.json` says.

    Attributes:
        tokens, documents: how many there are.
        dtype: of a token.
        tokenizer: that made them.
        bytes: size of tokens.bin.
        blocks_xxh3_128: of blocks.bin; empty in a cache of a version that kept no checksums.
    """

    tokens: int
    documents: int
    dtype: str
    tokenizer: str
    bytes: int
    blocks_xxh3_128: str = ""


def is_prepared(folder: Path) -> bool:
    """Whether a finished preparation lies in `folder`: the index is written last, then the folder gets its name.

    Raises:
        UnreadableCacheError: storage does not say.
    """
    with _reading(folder / INDEX):
        return (folder / INDEX).exists()


def read_index(folder: Path) -> CacheIndex:
    """The index of prepared data, checked against the files' sizes.

    Raises:
        DamagedCacheError: it is not what was written, or something is missing or has another size than it says.
        UnreadableCacheError: storage does not give it.
    """
    path = folder / INDEX
    with _reading(path):
        text = path.read_bytes()
    try:
        index = _parsed(parse(text))
    except (ValueError, TypeError, KeyError) as error:
        what = f"is damaged ({type(error).__name__}: {error})" if text else "is empty"
        raise _damaged(path, " ".join(what.split())) from None
    _check_size(folder / TOKENS, index.bytes)
    if index.blocks_xxh3_128:
        _check_size(folder / BLOCKS, -(-index.bytes // BLOCK) * _SUM)
    return index


def _parsed(said: dict[str, Any]) -> CacheIndex:
    if said["dtype"] not in _DTYPES:
        raise ValueError(f"dtype {said['dtype']!r}")
    expected = said["tokens"] * np.dtype(said["dtype"]).itemsize
    size = said.setdefault("bytes", expected)  # versions before checksums did not write it
    if type(size) is not int or size != expected:
        raise ValueError(f"{said['tokens']} tokens of {said['dtype']} in {size} bytes")
    return CacheIndex(**{field.name: said[field.name] for field in fields(CacheIndex) if field.name in said})


def _check_size(path: Path, expected: int) -> None:
    with _reading(path, f"is missing ({INDEX} says that it has {expected:,} bytes)"):
        size = path.stat().st_size
    if size != expected:
        raise _damaged(path, f"has {size:,} bytes, {INDEX} says {expected:,}")


@contextlib.contextmanager
def _naming(name: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder / name)) from error


class CacheWriter:
    """Writes a cache into a folder that gets its final name afterwards.

    Args:
        folder: exists.
        dtype: of a token.
        kept: tokens that stay of an earlier writer, which had flushed them.

    Raises:
        DamagedCacheError: fewer than `kept` are there.
        OSError: the files cannot be written; here and from every method, with the file's name.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, kept: int = 0) -> None:
        self._folder, self._dtype = folder, dtype
        self.tokens = kept
        size = kept * dtype.itemsize
        whole, tail = divmod(size, BLOCK)
        for path, least in ((folder / TOKENS, size), (folder / BLOCKS, whole * _SUM)):
            path.touch()
            if path.stat().st_size < least:
                raise _damaged(path, f"has {path.stat().st_size:,} bytes where {least:,} were written")
        self._tokens = (folder / TOKENS).open("r+b")
        self._blocks = (folder / BLOCKS).open("r+b")
        self._blocks.truncate(whole * _SUM)
        self._blocks.seek(0)
        self._sums = xxhash.xxh3_128(self._blocks.read())
        self._tokens.truncate(size)
        self._tokens.seek(whole * BLOCK)
        self._block = xxhash.xxh3_64(self._tokens.read())
        self._room = BLOCK - tail

    def write(self, ids: np.ndarray) -> None:
        """Append tokens: integers, shape (n,)."""
        data = memoryview(ids.astype(self._dtype).tobytes())
        with _naming(TOKENS, self._folder):
            self._tokens.write(data)
        self.tokens += len(ids)
        while data:
            part = data[: self._room]
            self._block.update(part)
            self._room -= len(part)
            data = data[len(part) :]
            if not self._room:
                self._end_block()

    def _end_block(self) -> None:
        digest = self._block.digest()
        self._blocks.write(digest)
        self._sums.update(digest)
        self._block, self._room = xxhash.xxh3_64(), BLOCK

    def flush(self) -> None:
        """Make what was written durable: another writer may go on after `tokens`."""
        for name, file in ((TOKENS, self._tokens), (BLOCKS, self._blocks)):
            with _naming(name, self._folder):
                file.flush()
                os.fsync(file.fileno())

    def finish(self, documents: int, tokenizer: str) -> CacheIndex:
        """Write the index; nothing can be appended any more."""
        if self._room < BLOCK:
            self._end_block()
        self.flush()
        self.close()
        index = CacheIndex(
            tokens=self.tokens,
            documents=documents,
            dtype=self._dtype.name,
            tokenizer=tokenizer,
            bytes=self.tokens * self._dtype.itemsize,
            blocks_xxh3_128=self._sums.hexdigest(),
        )
        write_durably(self._folder / INDEX, json.dumps(asdict(index)))
        return index

    def close(self) -> None:
        """Close the files; what is not flushed is not kept."""
        for file in (self._tokens, self._blocks):
            with contextlib.suppress(OSError):  # the disk that was full when it was written
                file.close()


class CacheReader:
    """Reads tokens of a cache, each block against its checksum. Works on in forked processes.

    Args:
        folder: of prepared data.

    Raises:
        DamagedCacheError: as `read_index`, and where blocks.bin is not what was written.
        UnreadableCacheError: storage does not give the files.
    """

    def __init__(self, folder: Path) -> None:
        self.index = read_index(folder)
        self._path = folder / TOKENS
        self._dtype = np.dtype(self.index.dtype)
        self._sums = b""
        if self.index.blocks_xxh3_128:
            with _reading(folder / BLOCKS):
                self._sums = (folder / BLOCKS).read_bytes()
            if xxhash.xxh3_128_hexdigest(self._sums) != self.index.blocks_xxh3_128:
                raise _damaged(folder / BLOCKS, f"does not have the checksum that {INDEX} says")
        # Not mapped: a file that is cut or a disk that fails under a mapping kills the process (SIGBUS).
        with _reading(self._path):
            self._file = self._path.open("rb", buffering=0)

    @property
    def has_checksums(self) -> bool:
        """Whether damage would be noticed: caches of earlier versions have no checksums."""
        return bool(self.index.blocks_xxh3_128)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens `begin` to `end` (exclusive) in the cache's own type, shape (end - begin,).

        Raises:
            DamagedCacheError: they are not what was written.
            UnreadableCacheError: storage does not give them.
        """
        size = self._dtype.itemsize
        first, last = begin * size // BLOCK, -(-end * size // BLOCK)
        data = self._bytes(first * BLOCK, min(last * BLOCK, self.index.bytes))
        self._verify(data, first)
        return np.frombuffer(data, self._dtype, count=end - begin, offset=begin * size - first * BLOCK)

    def verify_all(self, *, limit: int | None = None) -> None:
        """Check every block, where the cache is not larger than `limit` bytes.

        Raises:
            DamagedCacheError, UnreadableCacheError: as `read`.
        """
        if self._sums and (limit is None or self.index.bytes <= limit):
            many = 64  # blocks that are read at once
            for first in range(0, -(-self.index.bytes // BLOCK), many):
                self._verify(self._bytes(first * BLOCK, min((first + many) * BLOCK, self.index.bytes)), first)

    def _bytes(self, begin: int, end: int) -> bytes:
        parts = []
        while begin < end:
            with _reading(self._path):
                part = os.pread(self._file.fileno(), end - begin, begin)
            if not part:
                raise _damaged(self._path, f"ends at byte {begin:,}, it was cut while it was in use")
            parts.append(part)
            begin += len(part)
        return b"".join(parts)

    def _verify(self, data: bytes, first: int) -> None:
        """Compare blocks from number `first` on with their checksums, where there are any."""
        if not self._sums:
            return
        for number, at in enumerate(range(0, len(data), BLOCK), first):
            digest = xxhash.xxh3_64_digest(memoryview(data)[at : at + BLOCK])
            if digest != self._sums[number * _SUM : (number + 1) * _SUM]:
                begin = number * BLOCK
                end = min(begin + BLOCK, self.index.bytes) - 1
                raise _damaged(self._path, f"bytes {begin:,} to {end:,} are not what was written (checksum)")


def check_prepared(folder: Path) -> CacheReader:
    """Open prepared data before they are used; a cache of up to 64 MiB is read once for that.

    Raises:
        DamagedCacheError, UnreadableCacheError: as `CacheReader.read`.
    """
    reader = CacheReader(folder)
    reader.verify_all(limit=_CHECK_AT_ONCE)
    return reader


def check_vacant(folder: Path) -> None:
    """Called before data are prepared.

    Raises:
        DamagedCacheError: the folder is there although it holds no finished preparation.
    """
    if folder.exists():
        raise _damaged(folder / INDEX, "is missing")
