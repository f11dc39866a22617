"""Ranks that are slower than the others, from what each needed for its own work, waits for others left out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.ledger.codec import Record
from runner.ledger.events import PaceMeasured

_LEAST = 0.05  # share of the time that a slow rank must cost the others: what is less, nobody would look for


@dataclass(frozen=True)
class SlowRank:
    """A rank that needed `own` seconds for what the others did in `others` (their median)."""

    rank: int
    own: float
    others: float


def slow_ranks(own: Mapping[int, float], seconds: float, factor: float) -> list[SlowRank]:
    """Ranks whose own work took more than `factor` times the median of the others.

    Args:
        own: rank -> seconds of its own work in one and the same time.
        seconds: how long that time was.
        factor: above 1.
    """
    found = []
    for rank, mine in own.items():
        others = [each for peer, each in own.items() if peer != rank]
        if others:
            median = statistics.median(others)
            if mine > factor * median and mine - median > _LEAST * seconds:
                found.append(SlowRank(rank, mine, median))
    return found


@dataclass(frozen=True)
class Straggler:
    """A rank that was slow in `slow` of `compared` comparisons.

    Attributes:
        part: what is slow, `host` or `GPU`.
        own, others: seconds a step of its own work, and of the median of the others, in those.
    """

    rank: int
    part: str
    slow: int
    compared: int
    own: float
    others: float


def stragglers_of(records: Sequence[Record]) -> list[Straggler]:
    """All ranks of a run that were ever slow, the slowest first."""
    rounds: dict[tuple[str, int], dict[int, PaceMeasured]] = defaultdict(dict)
    for record in records:
        if isinstance(record.event, PaceMeasured):
            rounds[record.life, record.event.last][record.rank] = record.event
    rounds = {key: paces for key, paces in rounds.items() if len(paces) > 1}
    found = defaultdict(list)
    for paces in rounds.values():
        any_ = next(iter(paces.values()))
        steps, seconds = any_.last - any_.first + 1, max(pace.seconds for pace in paces.values())
        for part, own in parts_of(paces):
            for slow in slow_ranks(own, seconds, any_.factor):
                found[slow.rank, part].append((slow.own / steps, slow.others / steps))
    stragglers = [
        Straggler(
            rank,
            part,
            len(times),
            len(rounds),
            statistics.fmean(own for own, _ in times),
            statistics.fmean(others for _, others in times),
        )
        for (rank, part), times in found.items()
    ]
    return sorted(
        stragglers, key=lambda straggler: straggler.slow * (straggler.own - straggler.others), reverse=True
    )


def parts_of(paces: Mapping[int, PaceMeasured]) -> Iterator[tuple[str, dict[int, float]]]:
    """What ranks are compared in, by name: rank -> seconds of its own work on it."""
    yield "host", {rank: pace.own for rank, pace in paces.items()}
    computed = {rank: pace.computed for rank, pace in paces.items() if pace.computed is not None}
    if len(computed) == len(paces):
        yield "GPU", computed
