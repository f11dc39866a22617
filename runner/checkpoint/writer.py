"""What runs in the writer process: staged bytes -> files, with checksums and an index.

The writer maps the rank's arena and hands views of it to NVRx (asynchronous saves) or torch (synchronous ones,
in the rank itself): the state is never copied again.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import struct
import threading
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from runner.checkpoint.arena import Arena, attach_arena
from runner.checkpoint.layout import DTYPES, Shard
from runner.checkpoint.nvrx_queue import WriteBucket, write_buckets
from runner.checkpoint.plan import FilePlan
from runner.system.durable import sync_folder
from runner.system.process import name_this_process

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class WriteRequest:
    """One rank's part of one save. Small and plain: it is pickled."""

    save: str  # identifies the save among all of this arena
    arena: str
    buffer: int
    folder: str
    files: tuple[FilePlan, ...]


def prepare_writer() -> None:
    """Called once in the writer process, ahead of the first save, so that its imports are done by then."""
    name_this_process("nvrx-writer")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # NVRx has set a handler of its own meanwhile; see `follow`
    torch.set_num_threads(1)


_arenas: dict[str, tuple[int, Arena]] = {}


def _arena(path: str) -> Arena:
    inode = Path(path).stat().st_ino
    known = _arenas.get(path)
    if known is None or known[0] != inode:
        _arenas.clear()
        _arenas[path] = known = (inode, attach_arena(path))
    return known[1]


def run_request(request: WriteRequest) -> None:
    """Write and report through the arena's mailbox; called by NVRx in the writer process."""
    arena = _arena(request.arena)
    try:
        folder = Path(request.folder)
        folder.mkdir(parents=True, exist_ok=True)
        shards: dict[MetadataIndex, Shard] = {}
        buckets: list[WriteBucket] = []
        for file in request.files:
            items = [(write_item(shard), view(arena, request.buffer, shard)) for shard in file.shards]
            shards |= {item.index: shard for (item, _), shard in zip(items, file.shards, strict=True)}
            buckets.append((str(folder / file.name), file.name, ([], items)))
        arena.write_mail(
            {"save": request.save, "files": describe(folder, write_buckets(folder, buckets), shards)}
        )
    except Exception as error:  # noqa: BLE001 - told to the rank, which tells all ranks; a dead writer would say less
        arena.write_mail({"save": request.save, "error": explain(error)})
    gc.collect()  # NVRx 0.4 turns the collector off in its loop for good


def view(arena: Arena, buffer: int, shard: Shard) -> torch.Tensor:
    """A shard's bytes in a buffer as a tensor whose storage is just these bytes (torch.save writes storages)."""
    dtype = DTYPES[shard.dtype]
    if not shard.nbytes:
        return torch.empty(shard.sizes, dtype=dtype)
    flat = torch.frombuffer(
        arena.memory,
        dtype=dtype,
        count=shard.nbytes // dtype.itemsize,
        offset=arena.buffer_start(buffer) + shard.start,
    )
    return flat.view(shard.sizes)


def write_item(shard: Shard) -> WriteItem:
    """The shard as DCP's planner would describe it."""
    return WriteItem(
        index=MetadataIndex(shard.name, shard.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(shard.offsets), torch.Size(shard.sizes)),
            properties=TensorProperties(dtype=DTYPES[shard.dtype]),
            size=torch.Size(shard.shape),
        ),
    )


class _StagedPlanner(SavePlanner):
    """Hands staged bytes to DCP's own writer; the plan itself was made at the start of the life."""

    def __init__(self, tensors: dict[MetadataIndex, torch.Tensor]) -> None:
        self._tensors = tensors

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._tensors[write_item.index]

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None: ...

    def create_local_plan(self) -> SavePlan:
        raise NotImplementedError("the plan is made by runner.checkpoint.plan")

    def create_global_plan(self, all_plans: list[SavePlan]) -> Any:
        raise NotImplementedError("the plan is made by runner.checkpoint.plan")

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan


def write_synchronously(
    folder: Path, arena: Arena, buffer: int, files: tuple[FilePlan, ...]
) -> list[dict[str, Any]]:
    """Write one rank's files with `torch.distributed.checkpoint`'s writer, in this process; returns `describe`.

    One DCP writer a file, each in a thread of ours: an error in a thread of DCP's own (`thread_count` above 1) is
    printed and forgotten, and `write_data` returns as if all had been written.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = {write_item(shard).index: shard for file in files for shard in file.shards}
    results: list[WriteResult] = []

    def one(file: FilePlan) -> None:
        items = [write_item(shard) for shard in file.shards]
        tensors = {
            item.index: view(arena, buffer, shard) for item, shard in zip(items, file.shards, strict=True)
        }
        # DCP appends "0.distcp"; copying ahead is for tensors on a GPU.
        plan = SavePlan(items, storage_data=_StoragePrefix(file.name.removesuffix(".distcp")))
        writer = FileSystemWriter(folder, sync_files=True, thread_count=1, per_thread_copy_ahead=0)
        results.extend(writer.write_data(plan, _StagedPlanner(tensors)).wait())

    computes = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)  # see `nvrx_queue.write_buckets`
    try:
        _in_threads(one, files)
    finally:
        torch.serialization.set_crc32_options(computes)
    return describe(folder, results, shards)


def _in_threads(function: Callable[[Any], None], arguments: Iterable[Any]) -> None:
    """Call `function` for every argument, each in a thread; raises what the first failed call raised."""
    failures: list[Exception] = []

    def call(argument: Any) -> None:
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failures.append(error)

    threads = [
        threading.Thread(target=call, args=(argument,), name="checkpoint-file") for argument in arguments
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def explain(error: BaseException) -> str:
    """An error in words: the operating system's, where it lies beneath (torch hides a full disk in a RuntimeError)."""
    beneath: BaseException | None = error
    while beneath is not None:
        if isinstance(beneath, OSError) and beneath.strerror:
            return f"{beneath.strerror}: {beneath.filename}" if beneath.filename else beneath.strerror
        beneath = beneath.__cause__ or beneath.__context__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def describe(
    folder: Path, results: list[WriteResult], shards: dict[MetadataIndex, Shard]
) -> list[dict[str, Any]]:
    """Read the written files back: size, checksum, and where each shard's bytes lie. Then fsync the folder.

    Returns:
        per file: name, size, xxh3_128, and items [name, offsets, sizes, container offset, container length,
        offset of the raw bytes in the file].
    """
    by_file: dict[str, list[WriteResult]] = {}
    for result in results:
        by_file.setdefault(result.storage_data.relative_path, []).append(result)
    described: dict[str, dict[str, Any]] = {}

    def one(name: str) -> None:
        described[name] = _describe_file(folder / name, by_file[name], shards)

    _in_threads(one, by_file)
    missing = shards.keys() - {result.index for result in results}
    if missing:
        raise RuntimeError(f"{len(missing)} tensors were not written, {next(iter(missing)).fqn} among them")
    sync_folder(folder)
    return [described[name] for name in sorted(described)]


def checksum(path: Path) -> str:
    """xxh3_128 of a file's bytes."""
    digest = xxhash.xxh3_128()
    chunk = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(chunk):
            digest.update(memoryview(chunk)[:count])
    return digest.hexdigest()


def _describe_file(
    path: Path, results: list[WriteResult], shards: dict[MetadataIndex, Shard]
) -> dict[str, Any]:
    items = []
    with path.open("rb") as stream:
        for result in sorted(results, key=lambda r: r.storage_data.offset):
            shard, info = shards[result.index], result.storage_data
            raw = _raw_offset(stream, info.offset, info.length, shard)
            items.append([shard.name, list(shard.offsets), list(shard.sizes), info.offset, info.length, raw])
    return {"name": path.name, "size": path.stat().st_size, "xxh3_128": checksum(path), "items": items}


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, stream: IO[bytes], start: int, length: int) -> None:
        self._stream, self._start, self._length, self._at = stream, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._stream.seek(self._start + self._at)
        data = self._stream.read(max(0, min(len(buffer), self._length - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _raw_offset(stream: IO[bytes], start: int, length: int, shard: Shard) -> int:
    """Where the tensor's own bytes lie: `torch.save` stores them unpacked in a zip entry."""
    with zipfile.ZipFile(_Part(stream, start, length)) as container:
        entry = next(info for info in container.infolist() if info.filename.endswith("/data/0"))
    if entry.file_size != shard.nbytes or entry.compress_type != zipfile.ZIP_STORED:
        raise RuntimeError(
            f"{stream.name}: {shard.name} takes {entry.file_size} bytes, expected {shard.nbytes}"
        )
    stream.seek(start + entry.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", stream.read(4))
    return start + entry.header_offset + 30 + name_length + extra_length
