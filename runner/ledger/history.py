"""Events of a run -> its launches and its lives, as one job rather than as ranks.

A life of the job is what its ranks did under one `life` text. All times are integers, nanoseconds of the run's
common clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.ledger.codec import Record
from runner.ledger.events import (
    NO_FAULT,
    FaultFired,
    FaultSeen,
    LaunchEnded,
    LaunchStarted,
    LifeEnded,
    LifeStarted,
    Loaded,
    SaveCommitted,
    SaveFailed,
    StepEnded,
    StepsRolled,
    Suspended,
    TeardownEnded,
)
from runner.ledger.refusals import without_refusals

NS = 1_000_000_000
_SEEN_WITHIN = NS  # from when a rank is stopped until a look finds it so
_STOPS_WITHIN = NS // 2  # from when a supervisor last ran until it and all its workers are stopped; and woken
_FELT_LATER = ("loader_death", "loader_hang")


@dataclass(frozen=True)
class Work:
    """Consecutive steps `first`..`last` of one life (one step, or a folded range), ended at `end`.

    `stalled` nanoseconds of it, the longest over the ranks, were spent waiting for checkpoints.
    """

    first: int
    last: int
    end: int
    seconds: float
    stalled: int
    tokens: int
    loss: float

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


@dataclass
class JobLife:
    """One life of the job.

    Attributes:
        started: the first of its processes (or functions, in process) began.
        load_began, loaded: on the slowest rank; None where it never got there.
        resumed: step it went on after; None where it never got there.
        source: where its state came from.
        work: its steps in order.
        fired: (time, rank, event) of the injected faults.
        finished: the last step that each rank finished in it.
        held_up: since when it was held up by what ended it, where somebody saw that begin.
        seen: first moment at which a process knew that this life is over.
        torn_down: last moment of its clearing away.
        commits: (time, event) of committed saves.
        first, last: its first and last event.
    """

    name: str
    started: int
    in_process: bool
    ranks: int = 0
    load_began: int | None = None
    loaded: int | None = None
    resumed: int | None = None
    source: str = ""
    work: list[Work] = field(default_factory=list)
    fired: list[tuple[int, int, FaultFired]] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    held_up: int | None = None
    seen: int | None = None
    seen_layer: str = ""
    reason: str = ""
    torn_down: int | None = None
    saves_ended: int | None = None
    ended: int | None = None
    clean: bool = False
    first: int = 0
    last: int = 0

    @property
    def last_step(self) -> int:
        """Last step that finished in it; where none did, the step it resumed from."""
        return self.work[-1].last if self.work else (self.resumed or 0)

    @property
    def broken_by(self) -> list[tuple[int, int, FaultFired]]:
        """Injected faults that it may have ended by: those after which their rank finished no later step.

        Its peers may have finished the step that it did not. A data worker's end is felt only once the batches that
        are loaded already have been used.
        """
        return [
            (at, rank, e)
            for at, rank, e in self.fired
            if e.step > self.last_step
            or (
                self.seen is not None
                and (e.type in _FELT_LATER or e.step >= self.finished.get(rank, self.resumed or 0))
            )
        ]


@dataclass(frozen=True)
class Launch:
    """One command: the time in which at least one node's `nvrx-run` was up. `exit_code` None: no end was seen."""

    start: int
    end: int
    layer: str
    exit_code: int | None


@dataclass(frozen=True)
class History:
    """A run as one job.

    Attributes:
        start, end: of the whole run so far.
        going_on: no end was seen: the run goes on, or was lost with its machines.
        suspended: [from, to) in which a command was up and nothing of it ran, in order, without overlap.
    """

    start: int
    end: int
    lives: tuple[JobLife, ...]
    launches: tuple[Launch, ...]
    going_on: bool
    suspended: tuple[tuple[int, int], ...] = ()


def history_of(records: Sequence[Record]) -> History:
    """The history that the records tell; records of any order, complete or not.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("an empty ledger has no history")
    records = without_refusals(records)
    launches = _launches(records)
    by_life: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.rank >= 0:
            by_life[record.life].append(record)
    lives = sorted((_life(name, items) for name, items in by_life.items()), key=lambda life: life.first)
    for (
        life
    ) in lives:  # no process is older than its command: a wall clock that was set meanwhile would have it so
        life.started = max(life.started, max((a.start for a in launches if a.start <= life.first), default=0))
    _ends_from_launchers(lives, records)
    start = min([r.at for r in records] + [life.started for life in lives])
    end = max(r.at for r in records)
    ended = launches[-1].exit_code is not None if launches else bool(lives and lives[-1].ended is not None)
    return History(start, end, tuple(lives), launches, going_on=not ended, suspended=_suspended(records))


def _suspended(records: Sequence[Record]) -> tuple[tuple[int, int], ...]:
    """What supervisors took for suspensions, where no worker recorded anything in the middle."""
    heard = sorted(r.at for r in records if r.rank >= 0)
    found: list[tuple[int, int]] = []
    for r in sorted(records, key=lambda record: record.at):
        if not isinstance(r.event, Suspended):
            continue
        begin, end = r.at - round(r.event.seconds * NS), r.at
        last = bisect_right(heard, begin + _STOPS_WITHIN) - 1
        if last + 1 < len(heard) and heard[last + 1] < end - _STOPS_WITHIN:
            continue
        begin = max(begin, heard[last] if last >= 0 else begin, found[-1][1] if found else begin)
        if begin < end:
            found.append((begin, end))
    return tuple(found)


def _life(name: str, records: list[Record]) -> JobLife:
    starts = [(r, r.event) for r in records if isinstance(r.event, LifeStarted)]
    # `process_started` is the wall clock of the node, which the common clock may have corrected: carry the shift.
    begun = [r.at - max(0, round((r.stamp.t - e.process_started) * NS)) for r, e in starts]
    life = JobLife(
        name=name,
        started=min([*begun, min(r.at for r in records)]),
        in_process=any(e.in_process for _, e in starts),
        ranks=len({r.rank for r in records}),
        first=min(r.at for r in records),
        last=max(r.at for r in records),
    )
    loads = [(r.at, r.event) for r in records if isinstance(r.event, Loaded)]
    if loads:
        life.loaded, slowest = max(loads, key=lambda item: item[0])
        life.load_began = max(life.started, life.loaded - round(slowest.seconds * NS))
        life.resumed = min(e.step for _, e in loads)
        life.source = slowest.source
    life.work = _work(records)
    if life.work and (life.resumed is None or life.resumed >= life.work[0].first):
        life.resumed = life.work[0].first - 1  # its load was not recorded
    for r in records:
        e = r.event
        if isinstance(e, FaultFired):
            life.fired.append((r.at, r.rank, e))
        elif isinstance(e, StepEnded | StepsRolled):
            last = e.step if isinstance(e, StepEnded) else e.last
            life.finished[r.rank] = max(last, life.finished.get(r.rank, 0))
        elif isinstance(e, FaultSeen):
            if life.seen is None or r.at < life.seen:
                life.seen, life.seen_layer, life.reason = r.at, e.layer, e.reason
        elif isinstance(e, TeardownEnded):
            life.torn_down = max(r.at, life.torn_down or r.at)
        elif isinstance(e, SaveCommitted | SaveFailed):
            life.saves_ended = max(r.at, life.saves_ended or r.at)
    life.reason = _own_fault(life, records) or life.reason
    endings = [(r.at, r.event) for r in records if isinstance(r.event, LifeEnded)]
    if endings:
        life.ended = max(at for at, _ in endings)
        reasons = {e.reason for _, e in endings}
        # A rank that leaves later than one that was asked to stop, or refused, may find it gone, which is no fault.
        life.clean = not reasons.isdisjoint(NO_FAULT) or (life.seen is None and reasons == {"finished"})
        bad = [(at, e) for at, e in endings if e.reason not in ("finished", *NO_FAULT)]
        if life.clean:
            life.seen, life.seen_layer, life.reason = None, "", ""
        elif bad:
            life.seen = life.seen if life.seen is not None else min(at for at, _ in bad)
            life.reason = life.reason or bad[0][1].message
    life.fired.sort(key=lambda item: item[:2])
    return life


def _own_fault(life: JobLife, records: list[Record]) -> str:
    """The fault of the rank that had it first, in one line; others may have felt it sooner. Empty: nobody says so."""
    for r in sorted(records, key=lambda record: record.at):
        if isinstance(r.event, FaultSeen) and r.event.own:
            return (
                f"rank {r.rank} after step {life.finished.get(r.rank, life.resumed or 0)}: {r.event.reason}"
            )
    return ""


def _work(records: list[Record]) -> list[Work]:
    """The steps of a life: single steps merged over the ranks, folded ranges taken from one rank."""
    blocks: dict[int, list[Work]] = defaultdict(list)
    single: dict[int, Work] = {}
    for r in records:
        e = r.event
        if isinstance(e, StepsRolled):
            stalled = round(e.stalled * NS)
            blocks[r.rank].append(Work(e.first, e.last, r.at, e.seconds, stalled, e.tokens, e.loss))
        elif isinstance(e, StepEnded):
            stalled = round(e.stalled * NS)
            old = single.get(e.step)
            end, seconds = r.at, e.seconds
            if old is not None:
                end, stalled, seconds = (
                    max(end, old.end),
                    max(stalled, old.stalled),
                    max(seconds, old.seconds),
                )
            single[e.step] = Work(e.step, e.step, end, seconds, stalled, e.tokens, e.loss)
    if not blocks:
        return [single[step] for step in sorted(single)]
    widest = max(blocks, key=lambda rank: (sum(b.count for b in blocks[rank]), -rank))
    out: list[Work] = []
    for unit in sorted([*blocks[widest], *single.values()], key=lambda w: (w.first, -w.last)):
        if not out or unit.first > out[-1].last:
            out.append(unit)
    return out


def _ends_from_launchers(lives: Sequence[JobLife], records: Sequence[Record]) -> None:
    """A launcher (rank -1) that saw a worker die speaks of the last life that had shown itself by then.

    By then processes of the next life may have been created, but they have said nothing yet.
    """
    begun = [life.first for life in lives]
    for r in records:
        index = bisect_right(begun, r.at) - 1
        if r.rank >= 0 or index < 0:
            continue
        life = lives[index]
        if life.clean and life.ended is not None and r.at >= life.ended:
            continue
        if isinstance(r.event, FaultSeen):
            # It tells which worker died; what its peers say (a broken connection) only follows from that.
            life.reason, life.clean = r.event.reason, False
            if life.seen is None or r.at < life.seen:
                life.seen, life.seen_layer = r.at, r.event.layer
            if r.event.lasted > 0:
                began = _fired_then(life, r.at - round(r.event.lasted * NS))
                life.held_up = began if life.held_up is None else min(began, life.held_up)
        elif isinstance(r.event, TeardownEnded):
            life.torn_down = max(r.at, life.torn_down or r.at)


def _fired_then(life: JobLife, began: int) -> int:
    """When trouble began that somebody saw a moment later: an injected fault says it itself."""
    return max((at for at, _, _ in life.fired if 0 <= began - at < _SEEN_WITHIN), default=began)


def _launches(records: Sequence[Record]) -> tuple[Launch, ...]:
    """Commands of all nodes, joined where they overlap."""
    open_: dict[str, tuple[int, str]] = {}  # node -> (start, layer)
    spans: list[Launch] = []
    last: dict[str, int] = {}
    for r in sorted(records, key=lambda record: record.at):
        node = r.stamp.node
        if isinstance(r.event, LaunchStarted):
            if node in open_:  # lost without an end: its last event is its end
                spans.append(Launch(open_[node][0], last[node], open_[node][1], None))
            open_[node] = (r.at, r.event.recovery_layer)
        elif isinstance(r.event, LaunchEnded) and node in open_:
            start, layer = open_.pop(node)
            spans.append(Launch(start, r.at, layer, r.event.exit_code))
        last[node] = r.at
    spans += [Launch(start, last[node], layer, None) for node, (start, layer) in open_.items()]
    joined: list[Launch] = []
    for span in sorted(spans, key=lambda s: s.start):
        if joined and span.start <= joined[-1].end:
            a = joined[-1]
            code = None if a.exit_code is None or span.exit_code is None else max(a.exit_code, span.exit_code)
            joined[-1] = Launch(a.start, max(a.end, span.end), a.layer, code)
        else:
            joined.append(span)
    return tuple(joined)
