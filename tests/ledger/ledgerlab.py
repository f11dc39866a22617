"""Writes the ledger of a made-up run: a clock that the test moves, any number of ranks and nodes."""

from __future__ import annotations

from pathlib import Path

from runner.ledger.codec import Stamp, encode
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
    SnapshotTaken,
    StepEnded,
    Suspended,
    TeardownEnded,
)

EPOCH = 1_764_000_000.0


class Lab:
    """A run whose time is `now`, in seconds since its start."""

    def __init__(self, *, ranks: int = 2, skew: float = 0.0) -> None:
        self.now = 0.0
        self.ranks = ranks
        self.skew = skew  # of the wall clock of the second half of the ranks, which live on another node
        self.items: list[tuple[Event, Stamp]] = []
        self.life = ""

    def at(self, rank: int, event: Event, *, life: str | None = None) -> None:
        node = "node-b" if self.skew and rank >= self.ranks // 2 else "node-a"
        t, m = EPOCH + self.now, 1000.0 + self.now
        if node == "node-b":
            t, m = t + self.skew, m + 5000.0
        name = self.life if life is None else life
        self.items.append((event, Stamp(t, m, node, rank, "launcher" if rank < 0 else name, 100 + rank)))

    def all(self, event: Event) -> None:
        for rank in range(self.ranks):
            self.at(rank, event)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def launch(self) -> None:
        self.at(-1, LaunchStarted(["nvrx-run", "recipe.yaml"], "inprocess", {}))

    def launched(self, exit_code: int = 0) -> None:
        self.at(-1, LaunchEnded(exit_code))

    def begin(self, life: str, step: int, *, startup: float, load: float, in_process: bool = False) -> None:
        """A life from its processes' start to the moment before its first step."""
        self.life = life
        skew = {r: self.skew if self.skew and r >= self.ranks // 2 else 0.0 for r in range(self.ranks)}
        started = EPOCH + self.now
        self.wait(startup)
        for rank in range(self.ranks):
            self.at(rank, LifeStarted(self.ranks, 0, started + skew[rank], in_process))
        self.wait(load)
        self.all(Loaded(step, "fresh" if step == 0 else "storage", load))

    def step(self, step: int, seconds: float = 1.0, stalled: float = 0.0) -> None:
        self.wait(seconds)
        self.all(StepEnded(step, seconds, stalled, 1000, 5.0 / step, 1e-3, 1.0))

    def save(self, step: int, stalled: float) -> None:
        self.all(SaveStarted(step, "async", stalled))
        self.at(0, SaveCommitted(step, 1 << 20, 2.0))
        self.at(0, SnapshotTaken(step, 0.0))

    def fault(self, step: int, *, partial: float, detection: float, teardown: float) -> None:
        """An injected fault `partial` seconds into `step`, seen and cleared away."""
        self.wait(partial)
        self.at(1 % self.ranks, FaultFired(1, step, "exception"))
        self.wait(detection)
        self.all(FaultSeen("inprocess", "an exception on rank 1"))
        self.wait(teardown)
        self.all(TeardownEnded())

    def frozen(self, seconds: float, *, finishes: int | None = None) -> None:
        """A rank is frozen `seconds` long, and killed; woken for that, it still finishes a step, where one is given."""
        self.wait(seconds)
        if finishes is not None:
            self.all(StepEnded(finishes, seconds, 0.0, 1000, 5.0 / finishes, 1e-3, 1.0))
        self.at(-1, FaultSeen("launcher", "rank 1 was frozen (SIGSTOP), and was killed", seconds))

    def suspended(self, seconds: float, *, noted: float | None = None) -> None:
        """The whole command does not run for so long; its supervisor looked last a fifth of a second before."""
        self.wait(seconds)
        self.at(-1, Suspended((seconds if noted is None else noted) + 0.2))

    def finish(self) -> None:
        self.all(LifeEnded("finished", 0))

    def write(self, folder: Path) -> Path:
        """The ledger's files, one a rank and node."""
        (folder / "ledger").mkdir(parents=True, exist_ok=True)
        for event, stamp in self.items:
            name = f"rank-{stamp.rank}-{stamp.node}.000.jsonl"
            with (folder / "ledger" / name).open("ab") as file:
                file.write(encode(event, stamp))
        return folder
