"""Which rank writes which shard into which file. Computed once per life; a save needs no collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.checkpoint.layout import Layout, Shard


@dataclass(frozen=True)
class FilePlan:
    """One file of a checkpoint and the shards that it will hold, in order."""

    name: str
    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        """Tensor bytes, without the container around them."""
        return sum(shard.nbytes for shard in self.shards)


def shards_to_write(layouts: Sequence[Layout], rank: int) -> list[Shard]:
    """The shards that `rank` writes: each box once, replicas shared out evenly by bytes over their owners.

    Args:
        layouts: the layout of every rank, by rank; the same on all ranks, so that all come to the same answer.
    """
    owners: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    places: list[dict[tuple[str, tuple[int, ...], tuple[int, ...]], Shard]] = []
    for owner, layout in enumerate(layouts):
        place = {shard.box: shard for shard in layout.shards if shard.nbytes}
        places.append(place)
        for box in place:
            owners.setdefault(box, []).append(owner)
    load = [0] * len(layouts)
    chosen: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    for box, ranks in owners.items():
        if len(ranks) == 1:
            chosen[box] = ranks[0]
            load[ranks[0]] += places[ranks[0]][box].nbytes
    for box, ranks in owners.items():
        if len(ranks) > 1:
            writer = min(ranks, key=lambda owner: (load[owner], owner))
            chosen[box] = writer
            load[writer] += places[writer][box].nbytes
    return [shard for box, shard in places[rank].items() if chosen[box] == rank]


def plan_files(shards: Sequence[Shard], rank: int, count: int) -> tuple[FilePlan, ...]:
    """Share shards out over at most `count` files of about the same size, largest first."""
    bins: list[list[Shard]] = [[] for _ in range(count)]
    sizes = [0] * count
    for shard in sorted(shards, key=lambda s: (-s.nbytes, s.name)):
        index = sizes.index(min(sizes))
        bins[index].append(shard)
        sizes[index] += shard.nbytes
    filled = (tuple(content) for content in bins if content)
    return tuple(FilePlan(f"__{rank}_{index}.distcp", content) for index, content in enumerate(filled))
