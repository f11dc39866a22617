"""Tiles a run's wall time: every nanosecond belongs to exactly one kind of use.

useful     executions of steps whose result was kept: no later life resumed from before them
replayed   executions, whole or partial, whose result was lost and had to be made again
stall      training waited for a checkpoint or snapshot; at the end, for the last commit
detection  from the fault until the first process knew. An injected fault begins when it fired, any other with the
           last thing that the life finished (a step, the load), so that the broken step counts here; where a rank was
           seen to be stopped, then, whatever a rank that was woken to be killed still finished. Where nobody
           recorded that they knew (a kill below the launcher): until the old life was cleared away or the next began
teardown   from then until the old life was cleared away; after a life that ended well, until the command ended
startup    from then, or from the start of a command, until the slowest rank began to load
load       until all ranks had their state
idle       no command was running: between a command that ended or was lost and the next; or one was, and it was
           suspended with all its processes

A step that was kept although it was never recorded (its process was killed before it could) is recognised by the
point at which the next life resumed, and counts as long as the life's median step.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from runner.ledger.history import NS, History, JobLife, Launch

Kind = Literal["useful", "replayed", "stall", "detection", "teardown", "startup", "load", "idle"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Span:
    """[start, end) in nanoseconds of one kind; `life` is the index of the life it belongs to or leads up to.

    Attributes:
        steps: executions of steps that are inside (useful ones that were kept, replayed ones that were lost).
        tokens: of those steps.
        final: a stall after the last step: nothing was left to train meanwhile.
    """

    start: int
    end: int
    kind: Kind
    life: int
    steps: int = 0
    tokens: int = 0
    final: bool = False

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


class _Tiler:
    """Lays spans end to end: what would begin before the last one ended is cut."""

    def __init__(self, start: int, end: int) -> None:
        self.cursor = start
        self.limit = end
        self.spans: list[Span] = []

    def until(
        self, end: int, kind: Kind, life: int, *, steps: int = 0, tokens: int = 0, final: bool = False
    ) -> None:
        end = min(max(end, self.cursor), self.limit)
        if end > self.cursor or steps:
            self.spans.append(Span(self.cursor, end, kind, life, steps, tokens, final))
            self.cursor = end


def fault_time(life: JobLife) -> int:
    """When the trouble that ended a life began (nanoseconds)."""
    if life.held_up is not None:
        return life.held_up if life.seen is None else min(life.held_up, life.seen)
    for at, _, event in life.broken_by:
        if event.step > life.last_step:
            return at
        felt = (
            max(at, life.work[-1].end) if life.work else at
        )  # no sooner than the last thing that was finished
        return felt if life.seen is None else min(felt, life.seen)
    if life.seen is None:
        return life.last
    if life.work:
        return min(life.work[-1].end, life.seen)
    return life.seen if life.loaded is None else min(life.loaded, life.seen)


def kept_through(history: History) -> list[int | None]:
    """For each life the last step whose result later lives kept; None: all (no later life resumed)."""
    kept: list[int | None] = []
    lowest: int | None = None
    for life in reversed(history.lives):
        kept.append(lowest)
        if life.resumed is not None:
            lowest = life.resumed if lowest is None else min(lowest, life.resumed)
    return kept[::-1]


def tile(history: History) -> tuple[Span, ...]:
    """The whole wall time of a run, in order, without gap or overlap.

    Where the run goes on, it ends with the last thing that is known to be over.
    """
    tiler = _Tiler(history.start, history.end)
    kept = kept_through(history)
    for i, life in enumerate(history.lives):
        _lead_up(tiler, history, i)
        _steps(tiler, life, i, kept[i])
        following = history.lives[i + 1] if i + 1 < len(history.lives) else None
        if following is None and history.going_on and life.seen is None and not _fired_last(life):
            return _without_suspensions(tiler.spans, history.suspended)
        _ending(tiler, history, i, following)
    if not history.lives:
        _between(tiler, history.launches, history.end, "startup", 0)
    return _without_suspensions(tiler.spans, history.suspended)


def _without_suspensions(spans: list[Span], suspended: tuple[tuple[int, int], ...]) -> tuple[Span, ...]:
    """The same tiling with `idle` where nothing ran; the steps of a span stay with the last of its pieces."""
    out: list[Span] = []
    for span in spans:
        for begin, end in suspended:
            if span.start < end and begin < span.end:
                if span.start < begin:
                    out.append(replace(span, end=begin, steps=0, tokens=0))
                out.append(Span(max(span.start, begin), min(end, span.end), "idle", span.life))
                span = replace(span, start=min(end, span.end))
        if span.duration or span.steps:
            out.append(span)
    return tuple(out)


def _fired_last(life: JobLife) -> bool:
    return any(event.step > life.last_step for _, _, event in life.fired)


def _lead_up(tiler: _Tiler, history: History, index: int) -> None:
    """Start-up and load of a life."""
    life = history.lives[index]
    began = life.load_began if life.load_began is not None else life.last
    if life.load_began is None and life.seen is not None:
        began = min(fault_time(life), life.seen)
    if life.load_began is None and life.work:
        began = life.work[0].end - round(life.work[0].seconds * NS)
    _between(tiler, history.launches, began, "startup", index)
    if life.loaded is not None:
        tiler.until(life.loaded, "load", index)


def _steps(tiler: _Tiler, life: JobLife, index: int, kept: int | None) -> None:
    for unit in life.work:
        good = unit.count if kept is None else min(unit.count, max(0, kept - unit.first + 1))
        lost = unit.count - good
        begin = tiler.cursor
        end = unit.end if life.held_up is None else min(unit.end, life.held_up)
        length = max(0, end - begin)
        busy = length - min(unit.stalled, length)
        tokens = unit.tokens * good // unit.count
        if good:
            tiler.until(begin + busy * good // unit.count, "useful", index, steps=good, tokens=tokens)
        if lost:
            tiler.until(begin + busy, "replayed", index, steps=lost, tokens=unit.tokens - tokens)
        tiler.until(end, "stall", index)


def _ending(tiler: _Tiler, history: History, index: int, following: JobLife | None) -> None:
    """From the last finished step of a life to the start of the next one, or to the end of the run."""
    life = history.lives[index]
    end = history.end if following is None else following.started
    gap = launch_gap(history.launches, life, following)
    limit = min(end, gap[0]) if gap else end
    if life.clean:
        tiler.until(min(limit, life.saves_ended or 0), "stall", index, final=True)
        tiler.until(limit, "teardown", index)
    else:
        began = fault_time(life)
        if life.loaded is None and not life.work:
            _between(tiler, history.launches, min(limit, began), "startup", index)
        elif following is not None and following.resumed is not None and life.work:
            hidden = max(0, following.resumed - life.last_step)
            seconds = statistics.median(unit.seconds / unit.count for unit in life.work)
            length = min(round(hidden * seconds * NS), max(0, min(limit, began) - tiler.cursor))
            if length:
                tokens = hidden * (life.work[-1].tokens // life.work[-1].count)
                tiler.until(tiler.cursor + length, "useful", index, steps=hidden, tokens=tokens)
        if life.loaded is not None or life.work:
            tiler.until(min(limit, began), "replayed", index)
        seen = life.seen if life.seen is not None else life.torn_down if life.torn_down is not None else limit
        tiler.until(min(limit, seen), "detection", index)
        torn = limit if life.torn_down is None or gap is not None or following is None else life.torn_down
        tiler.until(min(limit, torn), "teardown", index)
    if gap is not None:
        tiler.until(gap[1], "idle", index + 1)


def launch_gap(
    launches: tuple[Launch, ...], life: JobLife, following: JobLife | None
) -> tuple[int, int] | None:
    """The time without any command between two lives, if there is one."""
    for a, b in pairwise(launches):
        if (
            life.started < b.start
            and following is not None
            and b.start <= following.last
            and life.started <= a.end
        ):
            return a.end, b.start
    return None


def _between(tiler: _Tiler, launches: tuple[Launch, ...], end: int, kind: Kind, life: int) -> None:
    """`kind` until `end`, but `idle` where no command was up (commands that never came to a life)."""
    for a, b in pairwise(launches):
        if a.end >= tiler.cursor and b.start <= end:
            tiler.until(a.end, kind, life)
            tiler.until(b.start, "idle", life)
    tiler.until(end, kind, life)
