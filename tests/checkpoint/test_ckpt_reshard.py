"""Any saved boxes fill any wanted box: the loader against plain slicing."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.checkpoint import loader
from runner.checkpoint.layout import Layout, Shard
from runner.checkpoint.plan import plan_files, shards_to_write
from runner.checkpoint.record import CommitRecord, Damaged


def cuts(size: int, places: list[int]) -> list[tuple[int, int]]:
    """[0, size) cut at some places, as (offset, length)."""
    edges = sorted({0, size, *(place % (size + 1) for place in places)})
    return [(a, b - a) for a, b in pairwise(edges)]


@st.composite
def grids(
    draw: st.DrawFn,
) -> tuple[tuple[int, ...], list[list[tuple[int, int]]], tuple[tuple[int, int], ...]]:
    """A shape, a grid of saved boxes over it, and one wanted box."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=3)))
    grid = [cuts(n, draw(st.lists(st.integers(0, 50), max_size=2))) for n in shape]
    wanted = tuple(
        draw(st.sampled_from(cuts(n, draw(st.lists(st.integers(0, 50), max_size=2))))) for n in shape
    )
    return shape, grid, wanted


def write_grid(folder: Path, whole: torch.Tensor, grid: list[list[tuple[int, int]]]) -> CommitRecord:
    """The boxes of a grid, one after the other in a file, with some bytes between them."""
    items, content = [], bytearray(b"head")
    boxes: list[list[tuple[int, int]]] = [[]]
    for axis in grid:
        boxes = [[*box, part] for box in boxes for part in axis]
    for box in boxes:
        part = whole
        for dim, (offset, length) in enumerate(box):
            part = part.narrow(dim, offset, length)
        items.append(["t", [o for o, _ in box], [n for _, n in box], 0, 0, len(content)])
        content += part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() + b"gap"
    (folder / "__0_00.distcp").write_bytes(content)
    from runner.checkpoint.writer import checksum

    file = {
        "name": "__0_00.distcp", "size": len(content), "xxh3_128": checksum(folder / "__0_00.distcp"), "items": items
    }  # fmt: skip
    return CommitRecord(1, 1, "", 0.0, "sync", {}, [file], {"t": ["float32", list(whole.shape)]})


@settings(max_examples=200, deadline=None)
@given(grids(), st.booleans())
def test_any_boxes_fill_any_box(
    case: tuple[tuple[int, ...], list[list[tuple[int, int]]], tuple[tuple[int, int], ...]], full: bool
) -> None:
    shape, grid, wanted = case
    whole = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) + 1
    offsets, sizes = tuple(o for o, _ in wanted), tuple(n for _, n in wanted)
    shard = Shard("t", "float32", shape, offsets, sizes, 0, 4 * math.prod(sizes))
    with tempfile.TemporaryDirectory() as name:
        record = write_grid(Path(name), whole, grid)
        memory = memoryview(bytearray(shard.nbytes))
        loader.load(
            Path(name),
            record,
            Layout((shard,), shard.nbytes),
            memory,
            0,
            1,
            full=full,
            threads=1,
            beat=lambda: None,
        )
    expected = whole
    for dim, (offset, length) in enumerate(wanted):
        expected = expected.narrow(dim, offset, length)
    assert torch.equal(torch.frombuffer(memory, dtype=torch.float32).view(sizes), expected)


def test_a_hole_in_the_checkpoint_is_damage(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    record = write_grid(tmp_path, whole, [[(0, 2), (2, 2)], [(0, 3)]])
    record.files[0]["items"].pop()
    shard = Shard("t", "float32", (4, 3), (0, 0), (4, 3), 0, 48)
    with pytest.raises(Damaged, match="6 of 12 elements"):
        loader.load(
            tmp_path, record, Layout((shard,), 48), memoryview(bytearray(48)), 0, 1, full=True, threads=1,
            beat=lambda: None,
        )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["all", "one", "split"])), min_size=1, max_size=20
    ),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_box_is_written_exactly_once(tensors: list[tuple[int, str]], world: int, files: int) -> None:
    layouts = []
    for rank in range(world):
        shards = []
        for index, (rows, kind) in enumerate(tensors):
            if kind == "split":
                low, high = rows * rank // world, rows * (rank + 1) // world
            else:
                low, high = (0, rows) if kind == "all" or rank == index % world else (0, 0)
            shards.append(Shard(f"t{index}", "float32", (rows,), (low,), (high - low,), 0, 4 * (high - low)))
        layouts.append(Layout(tuple(shards), 0))
    written: dict[str, int] = {}
    names = []
    for rank in range(world):
        plans = plan_files(shards_to_write(layouts, rank), rank, files)
        assert len(plans) <= files
        for plan in plans:
            names.append(plan.name)
            for shard in plan.shards:
                assert shard in layouts[rank].shards
                written[shard.name] = written.get(shard.name, 0) + shard.sizes[0]
    assert written == {f"t{index}": rows for index, (rows, _) in enumerate(tensors)}
    assert len(names) == len(set(names))
