"""Where each local shard lies: its box in the global tensor and its place in a staging buffer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from runner.errors import RunError

ALIGNMENT = 512  # bytes; more than any dtype and than the copy engines ask for

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """One rank's part of one tensor: the box `offsets` + `sizes` of a tensor of `shape` (all in elements)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int  # byte offset in a staging buffer
    nbytes: int

    @property
    def box(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """What is equal where two ranks hold the same values."""
        return self.name, self.offsets, self.sizes


@dataclass(frozen=True)
class Layout:
    """All shards of one rank, in the order of `TrainState.tensors`; `nbytes` is the size of a staging buffer."""

    shards: tuple[Shard, ...]
    nbytes: int

    @property
    def digest(self) -> str:
        """Equal where two layouts put the same boxes at the same places."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:32]

    def to_json(self) -> list[Any]:
        """JSON values that `from_json` reads back."""
        return [
            [s.name, s.dtype, list(s.shape), list(s.offsets), list(s.sizes), s.start, s.nbytes]
            for s in self.shards
        ]

    @staticmethod
    def from_json(value: list[Any]) -> Layout:
        """The inverse of `to_json`."""
        shards = tuple(
            Shard(name, dtype, tuple(shape), tuple(offsets), tuple(sizes), start, nbytes)
            for name, dtype, shape, offsets, sizes, start, nbytes in value
        )
        return Layout(shards, max((_aligned(s.start + s.nbytes) for s in shards), default=0))


def _aligned(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor that this rank holds, detached, sharing memory with `tensor`."""
    return tensor._local_tensor.detach() if isinstance(tensor, DTensor) else tensor.detach()


def placement(tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """What decides a rank's layout, cheaper to compare than the layout is to make."""
    return tuple(
        (name, t.dtype, t.shape, (t.placements, t._local_tensor.shape) if isinstance(t, DTensor) else None)
        for name, t in tensors.items()
    )


def local_layout(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Lay the local shards out one after the other.

    Raises:
        RunError: a tensor's dtype or placement cannot be saved.
    """
    shards = []
    start = 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise RunError(f"checkpoint: {name} has dtype {dtype}, which is not one of {', '.join(DTYPES)}")
        offsets: tuple[int, ...] = (0,) * tensor.dim()
        if isinstance(tensor, DTensor):
            if any(placement.is_partial() for placement in tensor.placements):
                raise RunError(
                    f"checkpoint: {name} holds partial sums ({tensor.placements}); reduce it first"
                )
            expected, offsets = compute_local_shape_and_global_offset(
                tensor.shape, tensor.device_mesh, tensor.placements
            )
            if tuple(expected) != tuple(tensor._local_tensor.shape):
                raise RunError(
                    f"checkpoint: {name} holds a shard of {tuple(tensor._local_tensor.shape)}, placement "
                    f"{tensor.placements} says {tuple(expected)}"
                )
        local = local_tensor(tensor)
        nbytes = local.numel() * local.element_size()
        shards.append(
            Shard(name, dtype, tuple(tensor.shape), tuple(offsets), tuple(local.shape), start, nbytes)
        )
        start = _aligned(start + nbytes)
    return Layout(tuple(shards), start)


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """Identifies the shape of model and optimiser: names, global shapes and dtypes; not the world size."""
    shape = sorted((name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items())
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:32]
