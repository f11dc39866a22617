"""Whatever happened, and whatever of it was recorded: the split is the wall time, and no step is useful twice."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from ledgerlab import Lab

from runner.ledger.codec import Stamp, decode, encode
from runner.ledger.events import (
    Event,
    FaultFired,
    FaultSeen,
    LaunchEnded,
    LaunchStarted,
    LifeEnded,
    LifeStarted,
    Loaded,
    SaveCommitted,
    SaveStarted,
    StepEnded,
    StepsRolled,
    Suspended,
    TeardownEnded,
)
from runner.ledger.goodput import account
from runner.ledger.history import NS
from runner.ledger.reader import merge
from runner.ledger.split import kept_through

spans = st.floats(0, 100, allow_nan=False)
steps = st.integers(1, 30)

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(LaunchStarted, st.just(["x"]), st.just("inprocess"), st.just({})),
    st.builds(LaunchEnded, st.integers(0, 14)),
    st.builds(LifeStarted, st.integers(1, 4), st.integers(0, 3), st.floats(1.7e9, 1.8e9), st.booleans()),
    st.builds(Loaded, st.integers(0, 30), st.sampled_from(["fresh", "storage", "memory"]), spans),
    st.builds(StepEnded, steps, spans, spans, st.integers(0, 5000), st.floats(), spans, st.none()),
    st.builds(
        lambda a, n, s, w: StepsRolled(a, a + n, s, w, 100 * (n + 1), 1.0, s, 0),
        steps,
        st.integers(0, 9),
        spans,
        spans,
    ),
    st.builds(SaveStarted, steps, st.just("async"), spans),
    st.builds(SaveCommitted, steps, st.integers(0, 10**9), spans),
    st.builds(FaultFired, st.integers(0, 5), steps, st.just("hang")),
    st.builds(FaultSeen, st.just("inprocess"), st.text(max_size=5), st.sampled_from([0.0, 3.0, 200.0])),
    st.just(TeardownEnded()),
    st.builds(Suspended, spans),
    st.builds(LifeEnded, st.sampled_from(["finished", "fault", "preempted", "refused", "error"])),
)


@st.composite
def noise(draw: st.DrawFn) -> list[tuple[Event, Stamp]]:
    """Events of any kind in any order from any rank, life and node: no story need be in it."""
    out = []
    for event in draw(st.lists(events, min_size=1, max_size=60)):
        rank = draw(st.integers(-1, 3))
        now = draw(st.floats(0, 1000))
        node = draw(st.sampled_from(["a", "b"]))
        life = draw(st.sampled_from(["1", "2", "3", "4"]))
        drift = draw(st.floats(-5, 5))
        out.append((event, Stamp(1.75e9 + now + drift, 50 + now, node, rank, life, 7)))
    return out


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[Event, Stamp]]:
    """Runs as they happen: commands, lives, steps, saves, faults during any of them; then lines are lost."""
    seconds = st.floats(0, 5)
    lab = Lab(ranks=draw(st.integers(1, 4)), skew=draw(st.sampled_from([0.0, 60.0, -3600.0])))
    saved, life, step = [0], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        lab.launch()
        for nth in range(draw(st.integers(1, 4))):
            life += 1
            step = draw(st.sampled_from(saved))
            in_process = nth > 0 and draw(st.booleans())
            lab.begin(str(life), step, startup=draw(seconds), load=draw(seconds), in_process=in_process)
            for _ in range(draw(st.integers(0, 6))):
                step += 1
                stalled = draw(st.sampled_from([0.0, 0.0, 0.3]))
                if draw(st.sampled_from([False, False, False, True])):
                    lab.suspended(draw(seconds))
                lab.step(step, 0.5 + stalled, stalled)
                if draw(st.booleans()):
                    lab.save(step, stalled)
                    saved.append(step)
            if draw(st.booleans()):
                lab.fault(step + 1, partial=draw(seconds), detection=draw(seconds), teardown=draw(seconds))
            elif draw(st.booleans()):
                lab.frozen(draw(seconds), finishes=step + 1 if draw(st.booleans()) else None)
        if draw(st.booleans()):
            lab.finish()
            lab.wait(draw(seconds))
        if draw(st.booleans()):
            lab.launched(draw(st.sampled_from([0, 1, 14])))
        lab.wait(draw(seconds))
    lost = draw(st.sets(st.integers(0, max(0, len(lab.items) - 1)), max_size=len(lab.items) // 3))
    kept = [item for i, item in enumerate(lab.items) if i not in lost]
    return draw(st.permutations(kept)) if draw(st.booleans()) else kept or lab.items


def check(items: list[tuple[Event, Stamp]]) -> None:
    records = merge(items)
    goodput, history, tiles = account(records)
    assert sum(goodput.split.values()) == goodput.wall
    assert all(value >= 0 for value in goodput.split.values())
    for a, b in pairwise(tiles):
        assert a.end == b.start
    if tiles:
        assert tiles[0].start == history.start and tiles[-1].end <= history.end
        assert history.going_on or tiles[-1].end == history.end
    assert 0 <= goodput.training <= 1 and 0 <= goodput.infra <= 1
    useful: Counter[int] = Counter()
    for life, last in zip(history.lives, kept_through(history), strict=True):
        for unit in life.work:
            useful.update(range(unit.first, unit.last + 1 if last is None else min(unit.last, last) + 1))
    assert all(count == 1 for count in useful.values())
    executed = sum(unit.count for life in history.lives for unit in life.work)
    hidden = goodput.useful_steps + goodput.replayed_steps - executed
    assert hidden >= 0
    assert goodput.useful_steps == len(useful) + hidden
    for recovery in goodput.recoveries:
        assert all(part >= 0 for part in recovery.parts.values())
        assert recovery.total <= goodput.wall


@settings(max_examples=300, deadline=None)
@given(noise())
def test_any_heap_of_events_is_split_without_remainder(items: list[tuple[Event, Stamp]]) -> None:
    check(items)


@settings(max_examples=300, deadline=None)
@given(stories())
def test_any_run_is_split_without_remainder_though_lines_were_lost(items: list[tuple[Event, Stamp]]) -> None:
    check(items)


@settings(max_examples=200, deadline=None)
@given(noise())
def test_every_event_survives_its_line(items: list[tuple[Event, Stamp]]) -> None:
    for event, stamp in items:
        again = decode(encode(event, stamp))
        assert again is not None and repr(again) == repr((event, stamp))


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 6), st.floats(-1e5, 1e5), st.integers(3, 20))
def test_nodes_that_train_together_share_a_clock_whatever_their_own_clocks_say(
    ranks: int, skew: float, count: int
) -> None:
    lab = Lab(ranks=ranks, skew=skew)
    lab.launch()
    lab.begin("1", 0, startup=1, load=1)
    for step in range(1, count):
        lab.step(step)
    ends: dict[int, list[int]] = {}
    for record in merge(lab.items):
        if isinstance(record.event, StepEnded):
            ends.setdefault(record.event.step, []).append(record.at)
    assert all(max(times) - min(times) < NS // 1000 for times in ends.values())
