"""One clock for the events of many nodes.

Within a node (a boot of a machine) the monotonic clock is shared by all processes and never jumps, so it orders
events exactly. Between nodes its offset is found, in this order of preference, from

1. `ClockSynced`: offsets measured over the store when the process group came up (`exchange_clocks`);
2. steps: a step's last collective ends on all ranks at nearly the same moment, so the median difference of the
   ends of steps that both nodes recorded is the offset, to about the length of that collective;
3. the wall clocks, where nodes never trained together (a machine that was rebooted between two commands).

The zero of the common clock is the wall clock of the node that recorded the most, taken as the median of `t - m`:
a wall clock that was set during the run moves nothing.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from runner.ledger.codec import Stamp, job_life
from runner.ledger.events import ClockSynced, Event, StepEnded


class KeyStore(Protocol):
    """The part of a torch.distributed store that the exchange uses; `get` waits, bounded, for the key."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


def answer_clocks(
    store: KeyStore, nodes: Sequence[str], *, rounds: int = 5, clock: Callable[[], float] = time.monotonic
) -> None:
    """The reference node's side of `exchange_clocks`, for each of the other `nodes` in turn.

    Run it in a thread where the caller must go on. Raises whatever the store raises when a node stays away.
    """
    for node in nodes:
        for i in range(rounds):
            store.get(f"clock/{node}/ask{i}")
            store.set(f"clock/{node}/answer{i}", repr(clock()))


def exchange_clocks(
    store: KeyStore,
    node: str,
    reference: str,
    *,
    rounds: int = 5,
    clock: Callable[[], float] = time.monotonic,
) -> ClockSynced:
    """Measure this node's offset to the reference (Cristian, 1989): of `rounds` round trips the shortest counts.

    Call it on one rank of each node but the reference's, with keys private to the life (a PrefixStore).
    """
    best: tuple[float, float] | None = None
    for i in range(rounds):
        sent = clock()
        store.set(f"clock/{node}/ask{i}", "")
        there = float(store.get(f"clock/{node}/answer{i}"))
        back = clock()
        if best is None or back - sent < 2 * best[0]:
            best = ((back - sent) / 2, there - (sent + back) / 2)
    if best is None:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    return ClockSynced(reference, offset=best[1], uncertainty=best[0])


def wall_clocks(events: Sequence[tuple[Event, Stamp]]) -> dict[str, float]:
    """node -> seconds to add to its monotonic clock to get the run's common clock."""
    own: dict[str, list[float]] = defaultdict(list)
    synced: dict[tuple[str, str], ClockSynced] = {}
    ends: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for event, stamp in events:
        own[stamp.node].append(stamp.t - stamp.m)
        if isinstance(event, ClockSynced):
            pair = (stamp.node, event.reference)
            if pair not in synced or event.uncertainty < synced[pair].uncertainty:
                synced[pair] = event
        elif isinstance(event, StepEnded):
            key = (job_life(stamp.life), event.step)
            ends[stamp.node][key] = max(stamp.m, ends[stamp.node].get(key, stamp.m))
    wall = {node: statistics.median(values) for node, values in own.items()}
    if len(wall) < 2:
        return wall
    reference = max(wall, key=lambda node: (len(own[node]), node))
    found = {reference: wall[reference]}
    for node in sorted(wall, key=lambda n: -len(own[n])):
        if node not in found:
            found[node] = _offset(node, found, synced, ends, wall)
    return found


def _offset(
    node: str,
    found: dict[str, float],
    synced: dict[tuple[str, str], ClockSynced],
    ends: dict[str, dict[tuple[str, int], float]],
    wall: dict[str, float],
) -> float:
    for other, base in found.items():
        if (node, other) in synced:
            return base + synced[node, other].offset
        if (other, node) in synced:
            return base - synced[other, node].offset
    for other, base in found.items():
        shared = ends[node].keys() & ends[other].keys()
        if shared:
            return base + statistics.median(ends[other][key] - ends[node][key] for key in shared)
    return wall[node]
