"""Ledgers of made-up runs with the costs of real ones, for looking at and for timing."""

from __future__ import annotations

import math
import random
from pathlib import Path

from ledgerlab import Lab

from runner.ledger.events import (
    FaultFired,
    FaultSeen,
    LaunchEnded,
    LaunchStarted,
    LifeEnded,
    LifeStarted,
    Loaded,
    ModelBuilt,
    SaveCommitted,
    SaveStarted,
    SnapshotTaken,
    StepEnded,
    TeardownEnded,
)

RECOVERY = {  # detection, teardown, idle, startup, load
    "inprocess": (0.35, 0.6, 0.0, 0.15, 0.05),
    "ft_launcher": (0.5, 1.5, 0.0, 7.0, 1.4),
    "kubernetes": (60.0, 2.0, 20.0, 16.0, 6.0),
}


def training_run(
    folder: Path,
    *,
    layer: str = "inprocess",
    mode: str = "async",
    steps: int = 400,
    every: int = 100,
    faults: int = 3,
    ranks: int = 4,
    seed: int = 42,
    stall: float = 0.02,
    write: float = 3.0,
) -> Path:
    """A run of steps of about 0.11 s with a write of `write` seconds and faults at random steps."""
    source = random.Random(seed)
    lab = Lab(ranks=ranks)
    due = sorted(source.sample(range(every // 2, steps), faults))
    detection, teardown, idle, startup, load = RECOVERY[layer]
    command = LaunchStarted(
        ["nvrx-run", "x"], layer if layer != "kubernetes" else "none", {"torch": "2.13.0"}
    )
    lab.at(-1, command)
    lab.life = "0"
    begun = 1_764_000_000.0 + lab.now
    lab.wait(9)
    lab.all(LifeStarted(ranks, 0, begun, False))
    lab.wait(0.8)
    lab.at(0, ModelBuilt(697_000_000, 4.5e9, "H200", 989e12))
    lab.all(Loaded(0, "fresh", 0.3))
    step, life, saved, snapshot = 0, 0, 0, 0
    commit: tuple[float, int] | None = None
    while step < steps:
        step += 1
        seconds = 0.11 * (1 + 0.03 * source.random()) + (0.4 if source.random() < 0.004 else 0)
        seconds += 0.35 if step == saved + 1 or step == 1 else 0
        if commit is not None and lab.now >= commit[0]:
            lab.at(0, SaveCommitted(commit[1], 2_100_000_000 * ranks, write))
            saved, commit = commit[1], None
        if due and step == due[0]:
            number = faults - len(due)
            del due[0]
            life += 1
            victim = source.randrange(ranks)
            kind = source.choice(["exception", "hang"] if layer == "inprocess" else ["sigkill", "hang"])
            lab.wait(seconds / 2)
            lab.at(victim, FaultFired(number, step, kind))
            lab.wait(detection + (1.5 if kind == "hang" else 0))
            lab.all(FaultSeen(layer, f"{kind} on rank {victim}"))
            lab.wait(teardown)
            lab.all(TeardownEnded())
            if layer == "kubernetes":
                lab.all(LifeEnded("error", 1))
                lab.at(-1, LaunchEnded(1))
                lab.wait(idle)
                lab.at(-1, command)
            lab.life = str(life)
            step = snapshot if layer == "inprocess" else saved
            begun = 1_764_000_000.0 + lab.now
            lab.wait(startup)
            lab.all(LifeStarted(ranks, life, begun, layer == "inprocess"))
            lab.wait(load)
            lab.all(Loaded(step, "memory" if layer == "inprocess" else "storage", load))
            commit = None
            continue
        stalled = 0.0
        if step % every == 0:
            stalled = write if mode == "sync" else stall
        lab.wait(seconds + stalled)
        loss = 10.4 * math.exp(-step / (steps / 2)) + 2.9 + 0.08 * source.random()
        lab.all(StepEnded(step, seconds + stalled, stalled, 65536, loss, 3e-4, 0.7))
        if step % 10 == 0:
            lab.all(SnapshotTaken(step, 0.001))
            snapshot = step
        if step % every == 0:
            lab.all(SaveStarted(step, mode, stalled))
            commit = (lab.now + (write if mode == "async" else 0.0), step)
    lab.wait(0.5)
    if commit is not None:
        lab.at(0, SaveCommitted(commit[1], 2_100_000_000 * ranks, write))
    lab.finish()
    lab.wait(1)
    lab.launched()
    return lab.write(folder)
