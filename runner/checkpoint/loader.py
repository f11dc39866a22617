"""Storage -> staging buffer, at any world size, without unpickling anything.

The commit record says where the raw bytes of every saved box lie, so they are read straight into place: the
same box at the same world size in one piece, else the overlap of boxes. Checksums are taken from the same pass
over a file; each file is verified by one rank, and the ranks compare notes afterwards.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from runner.checkpoint.layout import DTYPES, Layout, Shard
from runner.checkpoint.patience import patiently
from runner.checkpoint.record import CommitRecord, Damaged, verify_sizes

_CHUNK = 8 << 20
_BEAT = 0.2  # seconds


@dataclass(frozen=True)
class _Piece:
    """Bytes `start..start+len(target)` of a file go to `target`."""

    start: int
    target: memoryview
    then: Callable[[], None] | None = None


def load(
    folder: Path, record: CommitRecord, layout: Layout, memory: memoryview, rank: int, world_size: int, *,
    full: bool, threads: int, beat: Callable[[], None], told: Callable[[OSError], None] = lambda error: None,
) -> None:  # fmt: skip
    """Fill `memory` (laid out as `layout`) from a checkpoint and verify this rank's share of its files.

    Args:
        full: compare checksums too, not only sizes.
        threads: files read at once.
        beat: called a few times a second, in the calling thread; may raise to give up.
        told: of an error of the file system after which a file is read once more; any thread.

    Raises:
        Damaged: the checkpoint does not verify or does not hold what is needed.
        OSError: the file system says no, again and again.
    """
    patiently(lambda: verify_sizes(folder, record), folder, lambda seconds: rest(seconds, beat), told)
    sources: dict[str, list[tuple[int, list[Any]]]] = {}
    for index, file in enumerate(record.files):
        for item in file["items"]:
            sources.setdefault(item[0], []).append((index, item))
    pieces: dict[int, list[_Piece]] = {}
    for shard in layout.shards:
        if shard.nbytes:
            _plan_shard(shard, record, sources.get(shard.name, []), memory, pieces)
    jobs = []
    for index, file in enumerate(record.files):
        mine = full and _verifier(file["name"], world_size) == rank
        if mine or index in pieces:
            expected = file["xxh3_128"] if mine else None
            jobs.append((folder / file["name"], file["size"], pieces.get(index, []), expected))
    jobs.sort(key=lambda job: -job[1])
    stop = threading.Event()
    pool = ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="load")
    try:
        running = [pool.submit(_read_patiently, *job, stop, told) for job in jobs]
        waiting = set(running)
        while waiting:
            done, waiting = wait(waiting, timeout=_BEAT, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            beat()
    finally:
        # A thread that went on would write into memory that is filled from another checkpoint next.
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def rest(seconds: float, beat: Callable[[], None]) -> None:
    """Wait, with a heartbeat."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        beat()
        time.sleep(min(left, _BEAT))


def _verifier(name: str, world_size: int) -> int:
    """The rank that checks a file: its writer where there is one of that number."""
    return int(name.split("_")[2]) % world_size if name.startswith("__") else 0


def _plan_shard(
    shard: Shard,
    record: CommitRecord,
    sources: list[tuple[int, list[Any]]],
    memory: memoryview,
    pieces: dict[int, list[_Piece]],
) -> None:
    dtype = DTYPES[shard.dtype]
    known = record.tensors.get(shard.name)
    if known is None or known[0] != shard.dtype or tuple(known[1]) != shard.shape:
        raise Damaged(f"the record describes {shard.name} as {known}, needed is {shard.dtype} {shard.shape}")
    covered = 0
    for index, (_, offsets, sizes, _, _, raw) in sources:
        low = [max(a, b) for a, b in zip(offsets, shard.offsets, strict=True)]
        high = [
            min(a + m, b + n) for a, m, b, n in zip(offsets, sizes, shard.offsets, shard.sizes, strict=True)
        ]
        extent = [max(0, h - lo) for lo, h in zip(low, high, strict=True)]
        count = math.prod(extent)
        if not count:
            continue
        if raw + math.prod(sizes) * dtype.itemsize > record.files[index]["size"]:
            raise Damaged(f"{shard.name} lies beyond the end of {record.files[index]['name']}")
        covered += count
        inner = [lo - o for lo, o in zip(low, offsets, strict=True)]
        outer = [lo - o for lo, o in zip(low, shard.offsets, strict=True)]
        piece = _piece(memory, shard, dtype, raw, sizes, inner, outer, extent)
        pieces.setdefault(index, []).append(piece)
    if covered != math.prod(shard.sizes):
        raise Damaged(f"{shard.name}: {covered} of {math.prod(shard.sizes)} elements are in the checkpoint")


def _piece(
    memory: memoryview, shard: Shard, dtype: torch.dtype, raw: int,
    sizes: list[int], inner: list[int], outer: list[int], extent: list[int],
) -> _Piece:  # fmt: skip
    """Read one overlap: in place where it is one run of bytes on both sides, else through a scratch buffer."""
    width = dtype.itemsize
    first = _flat(inner, sizes) * width
    length = math.prod(extent) * width
    if _is_run(extent, sizes) and _is_run(extent, list(shard.sizes)):
        begin = shard.start + _flat(outer, list(shard.sizes)) * width
        return _Piece(raw + first, memory[begin : begin + length])
    last = _flat([i + e - 1 for i, e in zip(inner, extent, strict=True)], sizes) * width + width
    scratch = bytearray(last - first)
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]

    def place() -> None:
        source = torch.frombuffer(scratch, dtype=dtype).as_strided(extent, strides)
        whole = torch.frombuffer(memory, dtype=dtype, count=math.prod(shard.sizes), offset=shard.start)
        target = whole.view(shard.sizes)
        for dim, (begin, size) in enumerate(zip(outer, extent, strict=True)):
            target = target.narrow(dim, begin, size)
        target.copy_(source)

    return _Piece(raw + first, memoryview(scratch), place)


def _flat(index: list[int], sizes: list[int]) -> int:
    flat = 0
    for i, n in zip(index, sizes, strict=True):
        flat = flat * n + i
    return flat


def _is_run(extent: list[int], sizes: list[int]) -> bool:
    """Whether a box of `extent` inside a contiguous tensor of `sizes` is one run of elements."""
    started = False
    for e, n in zip(extent, sizes, strict=True):
        if started and e != n:
            return False
        started = started or e > 1
    return True


def _read_patiently(
    path: Path, size: int, pieces: list[_Piece], expected: str | None, stop: threading.Event,
    told: Callable[[OSError], None],
) -> None:  # fmt: skip
    patiently(lambda: _read_file(path, size, pieces, expected, stop), path, stop.wait, told)


def _read_file(
    path: Path, size: int, pieces: list[_Piece], expected: str | None, stop: threading.Event
) -> None:
    """One pass over a file; all of it where `expected` (its xxh3_128) is to be compared, else the pieces only.

    Ends early, with nothing said, once `stop` is set: the load has failed elsewhere.
    """
    digest = xxhash.xxh3_128() if expected is not None else None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, target in _segments(
            sorted(pieces, key=lambda p: p.start), size, everything=digest is not None
        ):
            for offset in range(0, len(target), _CHUNK):
                if stop.is_set():
                    return
                chunk = target[offset : offset + _CHUNK]
                _read_exactly(fd, chunk, start + offset, path)
                if digest is not None:
                    digest.update(chunk)
    finally:
        os.close(fd)
    if digest is not None and digest.hexdigest() != expected:
        raise Damaged(f"{path.name} has checksum {digest.hexdigest()}, the record says {expected}")
    for piece in pieces:
        if piece.then is not None:
            piece.then()


def _segments(pieces: list[_Piece], size: int, *, everything: bool) -> Iterator[tuple[int, memoryview]]:
    """The reads of one pass, in order: the pieces, and what lies between them where `everything` is wanted."""
    scratch = bytearray(_CHUNK) if everything else b""
    position = 0

    def gap(until: int) -> Iterator[tuple[int, memoryview]]:
        nonlocal position
        while position < until:
            length = min(_CHUNK, until - position)
            yield position, memoryview(scratch)[:length]
            position += length

    for piece in pieces:
        if piece.start < position and everything:
            raise Damaged("items of the record overlap")
        if everything:
            yield from gap(piece.start)
        yield piece.start, piece.target
        position = piece.start + len(piece.target)
    if everything:
        yield from gap(size)


def _read_exactly(fd: int, target: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(fd, [target[done:]], offset + done)
        if not count:
            raise Damaged(f"{path.name} ends at byte {offset + done}")
        done += count
