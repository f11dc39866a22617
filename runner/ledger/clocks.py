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

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from runner.ledger.codec import Stamp, job_life
from runner.ledger.events import ClockSynced, Event, StepEnded

_log = logging.getLogger("runner.ledger")

MOST_NODES = 64
"""Of larger jobs the offsets are taken from the steps: rank 0 answers node after node, a millisecond each."""
PATIENCE = timedelta(seconds=10)
"""Longest wait for one answer."""


class KeyStore(Protocol):
    """The part of a torch.distributed store that the exchange uses."""

    def set(self, key: str, value: str) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...

    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class NodePlace:
    """Which of a job's nodes this is: `number` of `count`; number 0 is the reference."""

    number: int
    count: int
    node: str


def exchange_clocks(
    store: KeyStore, place: NodePlace, *, rounds: int = 5, clock: Callable[[], float] = time.monotonic
) -> ClockSynced | None:
    """Measure the offset of this node's monotonic clock to node 0's (Cristian, 1989); the shortest round trip counts.

    Call it on one rank of each node at about the same time, with a store whose keys are private to the life. None on
    node 0, on a job of one node or of more than MOST_NODES, and where an answer did not come in time: the reader then
    falls back on the steps.
    """
    if not 1 < place.count <= MOST_NODES:
        return None
    try:
        if place.number == 0:
            _answer(store, place, rounds, clock)
            return None
        return _ask(store, place, rounds, clock)
    except RuntimeError as error:  # what torch's stores raise for a key that does not come
        _log.warning("the clocks of the nodes were not compared: %s", error)
        return None


def _answer(store: KeyStore, place: NodePlace, rounds: int, clock: Callable[[], float]) -> None:
    store.set("clock/reference", place.node)
    for number in range(1, place.count):
        for i in range(rounds):
            store.wait([f"clock/{number}/ask{i}"], PATIENCE)
            store.set(f"clock/{number}/answer{i}", repr(clock()))


def _ask(store: KeyStore, place: NodePlace, rounds: int, clock: Callable[[], float]) -> ClockSynced:
    store.wait(["clock/reference"], PATIENCE)
    reference = store.get("clock/reference").decode()
    trips = []
    for i in range(rounds):
        sent = clock()
        store.set(f"clock/{place.number}/ask{i}", "?")
        store.wait(
            [f"clock/{place.number}/answer{i}"], PATIENCE * place.count
        )  # the nodes before us come first
        there, back = float(store.get(f"clock/{place.number}/answer{i}")), clock()
        trips.append((back - sent, there - (sent + back) / 2))
    trip, offset = min(trips)
    return ClockSynced(reference, offset=offset, uncertainty=trip / 2)


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
