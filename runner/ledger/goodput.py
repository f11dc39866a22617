"""What a run achieved and what its faults cost, computed from what happened alone.

- training goodput = useful / wall
- infra goodput = 1 - downtime / wall, where downtime is the time of detection, teardown, idle, start-up and load
  that faults brought about (the article's definition: replayed steps and checkpoint stalls are not downtime, nor is
  the first start of the run, nor the time between a command that ended well and the next)
- recovery of a fault = from the fault to the first finished step after it (where none was left: to the state in place)
- useful tokens/s = tokens of useful steps / the time of those steps without stalls; each life is measured from the
  point it resumed from, so that a restart makes neither a spike nor a dip
- MFU = useful tokens/s x FLOPs per token / (devices x peak FLOP/s of one); the FLOPs per token of forward and
  backward come from the model (`ModelBuilt`): 6 per parameter that is multiplied with, plus
  12 x layers x hidden size x sequence length for attention (Chowdhery et al., PaLM, 2022, appendix B)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runner.ledger.codec import Record
from runner.ledger.events import LifeStarted, ModelBuilt
from runner.ledger.history import NS, History, JobLife, history_of
from runner.ledger.split import KINDS, Kind, Span, fault_time, launch_gap, tile

DOWN: frozenset[Kind] = frozenset(("detection", "teardown", "idle", "startup", "load"))
"""Kinds that a fault brings about."""


@dataclass(frozen=True)
class Recovery:
    """What one end of a life by a fault cost. Times in nanoseconds.

    Attributes:
        at: when the fault began (see `runner.ledger.split`).
        cause: types of the injected faults, or the reason that was recorded.
        faults: (number, rank, step, type) of the injected faults behind it; empty where none was injected.
        by: who mended it: `inprocess` (same processes), `launcher` (new processes), `command` (a new command), or
            `none` where nothing came after.
        parts: detection, teardown, idle, startup, load, and `step`: from the load to the first finished step.
            Other faults that came before that step are inside.
        lost: finished steps whose result was lost.
        resumed, source: where training went on, and where the state came from.
        finished: it was mended: a step finished afterwards, or none was left to make.
    """

    at: int
    cause: str
    faults: tuple[tuple[int, int, int, str], ...]
    by: str
    parts: dict[str, int]
    lost: int
    resumed: int | None
    source: str
    finished: bool

    @property
    def total(self) -> int:
        """From the fault to the first finished step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Goodput:
    """The account of a run. Times in nanoseconds, goodputs as shares of 1.

    Attributes:
        split: kind -> time; sums to `wall` exactly.
        restarts: who restarted -> how often.
        useful_tokens_per_s: while useful steps ran; None before the first.
        mfu: None where the device's peak is unknown.
    """

    wall: int
    split: dict[Kind, int]
    training: float
    infra: float
    recoveries: tuple[Recovery, ...]
    restarts: dict[str, int]
    useful_steps: int
    replayed_steps: int
    steps_lost: int
    useful_tokens: int
    useful_tokens_per_s: float | None
    mfu: float | None
    efficiency: float | None
    """Share of stepping time that was not spent waiting for checkpoints (the article's training efficiency). The wait
    for the last commit, when no step is left to make, is not in it."""
    going_on: bool


def account(records: Sequence[Record]) -> tuple[Goodput, History, tuple[Span, ...]]:
    """The account of a run, with the history and the tiling that it comes from.

    Raises:
        ValueError: there are no records.
    """
    history = history_of(records)
    spans = tile(history)
    wall = spans[-1].end - spans[0].start if spans else 0
    split: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    steps: Counter[str] = Counter()
    tokens = 0
    for span in spans:
        split[span.kind] += span.duration
        steps[span.kind] += span.steps
        tokens += span.tokens if span.kind == "useful" else 0
    recoveries = tuple(_recoveries(history, spans))
    rate = tokens / (split["useful"] / NS) if split["useful"] else None
    stalled = sum(span.duration for span in spans if span.kind == "stall" and not span.final)
    stepping = split["useful"] + split["replayed"] + stalled
    return (
        Goodput(
            wall=wall,
            split=split,
            training=split["useful"] / wall if wall else 0.0,
            infra=1.0 - _downtime(history, spans) / wall if wall else 0.0,
            recoveries=recoveries,
            restarts=dict(Counter(r.by for r in recoveries if r.by != "none")),
            useful_steps=steps["useful"],
            replayed_steps=steps["replayed"],
            steps_lost=sum(r.lost for r in recoveries),
            useful_tokens=tokens,
            useful_tokens_per_s=rate,
            mfu=_mfu(records, rate),
            efficiency=(stepping - stalled) / stepping if stepping else None,
            going_on=history.going_on,
        ),
        history,
        spans,
    )


def _fault_windows(history: History) -> list[tuple[int, int]]:
    """[fault, mended] of each life that a fault ended."""
    windows = []
    for i, life in enumerate(history.lives):
        if _faulted(history, i):
            windows.append((fault_time(life), _mended(history, i)[0]))
    return windows


def _faulted(history: History, index: int) -> bool:
    life = history.lives[index]
    if life.clean:
        return False
    last = index == len(history.lives) - 1
    return not last or life.seen is not None or _broken_by_injection(life) or not history.going_on


def _broken_by_injection(life: JobLife) -> bool:
    return any(event.step > life.last_step for _, _, event in life.fired)


def _mended(history: History, index: int) -> tuple[int, bool]:
    """When a life's end was mended, and whether it was: a step was finished, or the state was there and none was left.

    What comes after a life that ended well, its command's end and whatever time until the next one, is not the fault's.
    """
    for life in history.lives[index + 1 :]:
        if life.work:
            return life.work[0].end, True
        if life.clean:
            return (life.loaded, True) if life.loaded is not None else (life.ended or life.last, False)
    return history.end, False


def _downtime(history: History, spans: Sequence[Span]) -> int:
    """Time of the kinds in DOWN inside at least one fault's window."""
    windows = sorted(_fault_windows(history))
    total, reached = 0, history.start
    for begin, end in windows:
        begin = max(begin, reached)
        for span in spans:
            if span.kind in DOWN:
                total += max(0, min(span.end, end) - max(span.start, begin))
        reached = max(reached, end)
    return total


def _recoveries(history: History, spans: Sequence[Span]) -> list[Recovery]:
    out = []
    for i, life in enumerate(history.lives):
        if not _faulted(history, i):
            continue
        begin, (end, mended) = fault_time(life), _mended(history, i)
        parts = {"detection": 0, "teardown": 0, "idle": 0, "startup": 0, "load": 0, "step": 0}
        for span in spans:
            inside = min(span.end, end) - max(span.start, begin)
            if inside > 0:
                parts[span.kind if span.kind in DOWN else "step"] += inside
        later = history.lives[i + 1] if i + 1 < len(history.lives) else None
        fired = tuple((e.fault, rank, e.step, e.type) for _, rank, e in life.broken_by)
        resumed = later.resumed if later is not None else None
        out.append(
            Recovery(
                at=begin,
                cause=" + ".join(f"{kind} on rank {rank}" for _, rank, _, kind in fired)
                or life.reason
                or "not recorded",
                faults=fired,
                by=_mended_by(history, life, later),
                parts=parts,
                lost=max(0, life.last_step - resumed) if resumed is not None else 0,
                resumed=resumed,
                source=later.source if later is not None else "",
                finished=mended,
            )
        )
    return out


def _mended_by(history: History, life: JobLife, later: JobLife | None) -> str:
    if later is None:
        return "none"
    if launch_gap(history.launches, life, later) is not None:
        return "command"
    return "inprocess" if later.in_process else "launcher"


def _mfu(records: Sequence[Record], rate: float | None) -> float | None:
    built = [r.event for r in records if isinstance(r.event, ModelBuilt)]
    worlds = [r.event.world_size for r in records if isinstance(r.event, LifeStarted)]
    if rate is None or not built or not worlds or not built[-1].peak_flops:
        return None
    return rate * built[-1].flops_per_token / (worlds[-1] * built[-1].peak_flops)
