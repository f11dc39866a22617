"""DCP's `.metadata`, so that plain `torch.distributed.checkpoint.load` reads our checkpoints.

Written for other tools only: it is a pickle, and nothing here ever reads one.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from runner.checkpoint.layout import DTYPES


def dcp_metadata(tensors: dict[str, list[Any]], files: list[dict[str, Any]]) -> bytes:
    """The pickled `Metadata` of a checkpoint.

    Args:
        tensors: name -> [dtype, global shape].
        files: as in `CommitRecord.files`.
    """
    chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in tensors}
    storage = {}
    for file in files:
        for name, offsets, sizes, offset, length, _ in file["items"]:
            chunks[name].append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            index = MetadataIndex(name, offsets, len(chunks[name]) - 1)
            storage[index] = _StorageInfo(file["name"], offset, length)
    described: dict[str, Any] = {
        name: TensorStorageMetadata(TensorProperties(dtype=DTYPES[dtype]), torch.Size(shape), chunks[name])
        for name, (dtype, shape) in tensors.items()
    }
    return pickle.dumps(
        Metadata(described, planner_data={name: (name,) for name in tensors}, storage_data=storage)
    )
