"""The events of a run's ledger: what each is called, which fields it carries, who writes it and when.

Every event also carries, added by the writer: `t` (wall clock, seconds since the epoch), `m` (monotonic clock of
the node, seconds), `node` (boot id of the node, since monotonic clocks compare only within one), `rank`, `life`
and `pid`. `life` is `attempt` (`runner.train.ports.Life`) or `attempt/rank`: what comes before the slash is the same on
all ranks of one life and different in every other life of the run. Events of the launcher process carry rank -1 and a
life of their own.

| event | written by | when |
|---|---|---|
| LaunchStarted, LaunchEnded | supervisor (rank -1), on each node | first and last thing a command does |
| Suspended | supervisor (rank -1), on each node | its command ran again after it had not |
| LifeStarted | worker | as soon as it knows its rank and life |
| ClockSynced | one rank a node | after the process group is up, where several nodes train |
| PhaseEnded | loop | each time a part of start-up is over |
| ModelBuilt | loop, rank 0 | once a life, after the model is materialised |
| Loaded | loop | after restore: the next thing is a step |
| StepEnded | loop | once a step, on every rank; may come one step late, but before the life ends |
| PaceMeasured | loop | every `recovery.stragglers.every` steps, on every rank, where that is set |
| SnapshotTaken, SaveStarted | checkpoint | when valid; when handed over |
| SaveCommitted, SaveFailed | checkpoint | by the committing rank; by every rank that learns of it |
| FaultFired | faults | before firing, followed by `sync()` |
| FaultSeen | recovery, or the launcher side | this process learns that the life is over; life = the old one |
| TeardownEnded | recovery | the last thing before the next life begins; life = the old one |
| LifeEnded | worker | when the training function is left for good, or by a fault |
| StepsRolled, LinesDropped | the ledger's writer itself | roll-up of old steps; after a disk came back |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LoadSource = Literal["fresh", "memory", "shared_memory", "storage"]


@dataclass(frozen=True)
class Event:
    """Base of all events; the class name is the event's kind."""


@dataclass(frozen=True)
class LaunchStarted(Event):
    """`nvrx-run` was started for this run (once per command, on each node)."""

    command: list[str]
    recovery_layer: str
    versions: dict[str, str]


@dataclass(frozen=True)
class LaunchEnded(Event):
    """The launcher ended; `exit_code` is what `nvrx-run` itself exits with."""

    exit_code: int


@dataclass(frozen=True)
class Suspended(Event):
    """This node's command did not run for the `seconds` before this: stopped with all below it, or frozen.

    Nothing is said of workers that went on: what they recorded meanwhile tells.
    """

    seconds: float


@dataclass(frozen=True)
class LifeStarted(Event):
    """A rank begins one execution of the training function.

    `process_started` is the wall clock at which the process was created (in-process restarts: at which the
    function was entered again), so that imports count as start-up.
    """

    world_size: int
    iteration: int
    process_started: float
    in_process: bool


@dataclass(frozen=True)
class ClockSynced(Event):
    """This node's monotonic clock plus `offset` seconds is the monotonic clock of node `reference`.

    `uncertainty` is half the round trip of the exchange, seconds.
    """

    reference: str
    offset: float
    uncertainty: float


@dataclass(frozen=True)
class PhaseEnded(Event):
    """A part of start-up is over: `imports`, `rendezvous`, `data`, `model`."""

    phase: str
    seconds: float


@dataclass(frozen=True)
class ModelBuilt(Event):
    """What MFU needs: `flops_per_token` of forward and backward, and the `peak_flops` of one device (None: unknown)."""

    parameters: int
    flops_per_token: float
    device: str
    peak_flops: float | None


@dataclass(frozen=True)
class Loaded(Event):
    """State is in place and training goes on after `step` (0: from the beginning)."""

    step: int
    source: LoadSource
    seconds: float


@dataclass(frozen=True)
class StepEnded(Event):
    """One optimiser step is complete on this rank.

    `seconds` is the step's whole wall time, `stalled` the part spent waiting for checkpoints or snapshots.
    `tokens` is the number of tokens of the global batch. `loss` is the mean over the global batch.
    """

    step: int
    seconds: float
    stalled: float
    tokens: int
    loss: float
    lr: float
    grad_norm: float | None


@dataclass(frozen=True)
class StepsRolled(Event):
    """Steps `first`..`last` of one life, consecutive, that the writer folded into one line to bound the ledger.

    Stamped with the time of the last one; the first one began at `t - seconds`. Sums over the steps, except
    `loss` (mean) and `slowest` (the longest step, seconds).
    """

    first: int
    last: int
    seconds: float
    stalled: float
    tokens: int
    loss: float
    slowest: float
    snapshots: int


@dataclass(frozen=True)
class PaceMeasured(Event):
    """Of the `seconds` that steps `first`..`last` took, this rank needed `own` for its own work.

    In the rest it waited for others, or for its GPU, which computed for `computed` seconds (None: not measured; waits
    for others are not in it either). `factor`: how much more than theirs makes it a slow one, as the recipe says.
    """

    first: int
    last: int
    seconds: float
    own: float
    factor: float
    computed: float | None = None


@dataclass(frozen=True)
class SnapshotTaken(Event):
    """A snapshot of the state after `step` is valid in host memory; `stalled` is what training waited for it."""

    step: int
    stalled: float


@dataclass(frozen=True)
class SaveStarted(Event):
    """A durable save of the state after `step` was handed to the writer; `stalled` is what training waited."""

    step: int
    mode: str
    stalled: float


@dataclass(frozen=True)
class SaveCommitted(Event):
    """The checkpoint of `step` is complete and renamed into place. Written by the committing rank."""

    step: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class SaveFailed(Event):
    """The save of `step` failed or was given up."""

    step: int
    path: str
    reason: str


@dataclass(frozen=True)
class FaultFired(Event):
    """An injected fault fires now on this rank (written durably before it does)."""

    fault: int
    step: int
    type: str


@dataclass(frozen=True)
class FaultSeen(Event):
    """This rank, or its launcher, learnt that the current life is over.

    `lasted`: seconds for which it had been held up before that, where a launcher has seen when that began: what still
    ended in that time, a step of a rank that was woken to be killed, say, was no training. 0: not known.
    `own`: whether it is the fault of the rank that tells, and not what follows from another's.
    """

    layer: str
    reason: str
    lasted: float = 0.0
    own: bool = False


@dataclass(frozen=True)
class TeardownEnded(Event):
    """The old life is cleared away (collectives aborted, groups destroyed, ranks met at the barrier)."""


@dataclass(frozen=True)
class LifeEnded(Event):
    """The training function returned or gave up on this rank.

    Of these reasons `preempted` and `refused` are no faults: somebody asked to stop, or the recipe, the data or the
    checkpoints are not those of this run.
    """

    reason: Literal["finished", "fault", "preempted", "refused", "error"]
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True)
class LinesDropped(Event):
    """The disk refused `count` lines before this one."""

    count: int


NO_FAULT = ("preempted", "refused")
"""Reasons for which a life ends early without a fault."""

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
"""Kind -> class."""
