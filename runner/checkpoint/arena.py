"""The staging arena: one file in shared memory that a rank fills and its writer process reads.

    page 0      what the arena is for: layout, world size, rank, fingerprint
    mailbox     what the writer process has to say (`runner.checkpoint.writer`)
    notes       one block per buffer: step and checksum of a buffer whose content may be used by a successor
    buffers     the bytes

A block of JSON is written so that a reader never takes half of one for a whole: its length is zeroed first and
set last, and a checksum covers it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

PAGE = 4096
_PART = 32 << 20  # bytes of a buffer that one thread checksums at a time
NOTE_BYTES = 256 << 10  # a note holds the state of a streaming dataset too
_FRAME = struct.Struct("<QQ")
_PAGE_MAKERS = 4  # threads; the kernel clears pages at a few GB/s a thread
_POPULATE_WRITE = 23  # madvise(2); Python names it only from 3.14 on
_LOCK_PATIENCE = 10.0  # seconds: a rank that was killed lets go of its arena at once


class ArenaError(Exception):
    """Shared memory cannot hold the arena, or what is there is not ours to use."""


@dataclass(frozen=True)
class Purpose:
    """What must be equal for a successor to use an arena's content."""

    run_id: str
    rank: int
    world_size: int
    layout: str
    fingerprint: str
    buffers: int
    buffer_bytes: int
    mailbox_bytes: int


def _part_checksum(part: memoryview) -> bytes:
    return xxhash.xxh3_64_digest(part)  # lets other threads run


def _round(value: int) -> int:
    return -(-value // PAGE) * PAGE


class Arena:
    """A mapped arena. `path` is what another process of the node opens."""

    def __init__(self, fd: int, path: str, purpose: Purpose, recovered: bool) -> None:
        self._fd = fd
        self.path = path
        self.purpose = purpose
        self.recovered = recovered
        self.memory = mmap.mmap(fd, self.size_for(purpose))

    @staticmethod
    def size_for(purpose: Purpose) -> int:
        """Bytes of the whole file."""
        fixed = PAGE + _round(purpose.mailbox_bytes) + purpose.buffers * NOTE_BYTES
        return fixed + purpose.buffers * max(PAGE, _round(purpose.buffer_bytes))

    @property
    def buffer_stride(self) -> int:
        """Bytes from one buffer to the next, whole pages."""
        return max(PAGE, _round(self.purpose.buffer_bytes))

    def buffer_start(self, index: int) -> int:
        """Byte offset of a buffer in the mapping."""
        fixed = PAGE + _round(self.purpose.mailbox_bytes) + self.purpose.buffers * NOTE_BYTES
        return fixed + index * self.buffer_stride

    def buffer(self, index: int) -> memoryview:
        """The bytes of one buffer, writable."""
        start = self.buffer_start(index)
        return memoryview(self.memory)[start : start + self.purpose.buffer_bytes]

    def make_buffer(self, index: int) -> None:
        """Make a buffer's pages, where they do not exist yet.

        Raises:
            OSError: there is not enough memory.
        """
        _make_pages(self._fd, self.memory, self.buffer_start(index), self.buffer_start(index + 1))

    def _frame(self, start: int, capacity: int, value: Any) -> None:
        payload = zlib.compress(json.dumps(value).encode(), 1) if value is not None else b""
        if len(payload) + _FRAME.size > capacity:
            raise ArenaError(
                f"{len(payload)} bytes of bookkeeping do not fit the {capacity} set aside for it"
            )
        self.memory[start : start + _FRAME.size] = _FRAME.pack(0, 0)
        if value is None:
            return
        begin = start + _FRAME.size
        self.memory[begin : begin + len(payload)] = payload
        self.memory[start : start + _FRAME.size] = _FRAME.pack(
            len(payload), xxhash.xxh3_64_intdigest(payload)
        )

    def _unframe(self, start: int, capacity: int) -> Any:
        length, digest = _FRAME.unpack(self.memory[start : start + _FRAME.size])
        if not 0 < length <= capacity - _FRAME.size:
            return None
        payload = self.memory[start + _FRAME.size : start + _FRAME.size + length]
        if xxhash.xxh3_64_intdigest(payload) != digest:
            return None
        return json.loads(zlib.decompress(payload))

    def write_note(self, index: int, note: dict[str, Any] | None) -> None:
        """Say what a buffer holds; None: nothing that counts."""
        self._frame(self._note_start(index), NOTE_BYTES, note)

    def read_note(self, index: int) -> dict[str, Any] | None:
        """What a buffer holds, None where nothing that counts."""
        return self._unframe(self._note_start(index), NOTE_BYTES)

    def _note_start(self, index: int) -> int:
        return PAGE + _round(self.purpose.mailbox_bytes) + index * NOTE_BYTES

    def write_mail(self, mail: dict[str, Any] | None) -> None:
        """Leave a message for the process at the other end."""
        self._frame(PAGE, self.purpose.mailbox_bytes, mail)

    def read_mail(self) -> dict[str, Any] | None:
        """The last message, None where there is none or it is being written."""
        return self._unframe(PAGE, self.purpose.mailbox_bytes)

    def checksum(self, index: int, pool: ThreadPoolExecutor | None = None) -> str:
        """xxh3 of a buffer's bytes, or rather of the checksums of its parts, so that threads can share the work."""
        view = self.buffer(index)
        parts = [view[start : start + _PART] for start in range(0, len(view), _PART)]
        digests = map(_part_checksum, parts) if pool is None else pool.map(_part_checksum, parts)
        return xxhash.xxh3_64_hexdigest(b"".join(digests))

    def close(self, *, remove: bool) -> None:
        """Let go of the file; `remove` takes its name away. The mapping goes with its last view."""
        if remove and not self.path.startswith("/proc/"):
            Path(self.path).unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lock(fd: int) -> bool:
    """Hold the arena for this process alone. A POSIX record lock: forked children do not inherit it."""
    end = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def _make_room(fd: int, size: int) -> None:
    """Give a file in memory its size, where there is room for it.

    Raises:
        OSError: there is not.
    """
    os.ftruncate(fd, size)
    room = os.fstatvfs(fd)
    if room.f_blocks > 0 and room.f_bavail * room.f_frsize < size:  # a memfd's file system states no size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _make_pages(fd: int, mapping: mmap.mmap, begin: int, end: int) -> None:
    """Have the kernel make the pages of a range now, in several threads: short memory shows here, not as a SIGBUS.

    Raises:
        OSError: there is not enough.
    """
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def make(offset: int) -> int:
        length = min(_PART, end - offset)
        return ctypes.get_errno() if libc.madvise(start + offset, length, _POPULATE_WRITE) else 0

    with ThreadPoolExecutor(_PAGE_MAKERS) as pool:
        failures = set(pool.map(make, range(begin, end, _PART))) - {0}
    if errno.EINVAL in failures:  # a kernel before 5.14
        os.posix_fallocate(fd, begin, end - begin)
    elif failures:
        number = failures.pop()
        raise OSError(number, os.strerror(number))


def open_arena(path: Path, purpose: Purpose, *, first_only: bool = False) -> Arena:
    """Find a predecessor's arena, or make a new one.

    Args:
        first_only: make only the first buffer's pages; `make_buffer` makes the others'.

    Raises:
        ArenaError: no shared memory there, too little of it, or a living process holds the arena.
    """
    size = Arena.size_for(purpose)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ArenaError(f"{path}: {error.strerror}") from error
    try:
        if not _lock(fd):
            raise ArenaError(f"{path} is held by another process")
        status = os.fstat(fd)
        if status.st_size == size and status.st_uid == os.getuid():
            arena = Arena(fd, str(path), purpose, recovered=True)
            if arena._unframe(0, PAGE) == asdict(purpose):
                return arena
        os.ftruncate(fd, 0)
        _make_room(fd, size)
        return _new(fd, str(path), purpose, first_only)
    except OSError as error:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise ArenaError(f"{path}: {size} bytes: {error.strerror}") from error
    except ArenaError:
        os.close(fd)
        raise


def _new(fd: int, path: str, purpose: Purpose, first_only: bool) -> Arena:
    arena = Arena(fd, path, purpose, recovered=False)
    _make_pages(fd, arena.memory, 0, arena.buffer_start(1 if first_only else purpose.buffers))
    arena._frame(0, PAGE, asdict(purpose))
    return arena


def private_arena(purpose: Purpose, *, first_only: bool = False) -> Arena:
    """An arena without a name: the writer process reaches it through this process, a successor does not.

    Raises:
        ArenaError: not enough memory.
    """
    fd = os.memfd_create("nvrx-arena", os.MFD_CLOEXEC)
    try:
        _make_room(fd, Arena.size_for(purpose))
        return _new(fd, f"/proc/{os.getpid()}/fd/{fd}", purpose, first_only)
    except OSError as error:
        os.close(fd)
        raise ArenaError(f"{Arena.size_for(purpose)} bytes of memory: {error.strerror}") from error


def attach_arena(path: str) -> Arena:
    """Map an arena that another process owns (its writer process does).

    Raises:
        ArenaError: it is not one.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    head = mmap.mmap(fd, PAGE)
    length, digest = _FRAME.unpack(head[: _FRAME.size])
    payload = head[_FRAME.size : _FRAME.size + length] if length < PAGE else b""
    head.close()
    if not payload or xxhash.xxh3_64_intdigest(payload) != digest:
        os.close(fd)
        raise ArenaError(f"{path} is not a staging arena")
    return Arena(fd, path, Purpose(**json.loads(zlib.decompress(payload))), recovered=True)
