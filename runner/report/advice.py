"""What a run's own costs say about how often to save (see `runner.ledger.interval`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.ledger.goodput import Recovery
from runner.ledger.history import NS
from runner.ledger.interval import GPU_HOURS_BETWEEN_FAULTS, Advice, Costs, FaultRates, advise
from runner.report.view import RunView

SCALES = (8, 64, 512, 4096, 16384)
"""GPUs for which advice is given."""


MEMORY = ("memory", "shared_memory")
"""Sources of a restore that needs no storage."""


def restores_from_memory(view: RunView) -> bool:
    """Whether this run's layer mends soft faults from memory: it was seen to, or is made to."""
    return "inprocess" in view.layer or any(r.source in MEMORY for r in view.goodput.recoveries)


def measured_costs(view: RunView) -> Costs | None:
    """A run's costs; None where it has no step or no save to measure.

    A recovery that was not seen is taken as the other kind's: memory is never slower than storage.
    """
    step, stall = view.step_seconds, view.save_stall
    if step is None or stall is None:
        return None
    soft = _mean([r for r in view.goodput.recoveries if r.source in MEMORY])
    hard = _mean([r for r in view.goodput.recoveries if r.source not in MEMORY])
    known = [value for value in (soft, hard) if value is not None]
    start = view.goodput.split["startup"] + view.goodput.split["load"]
    first = start / NS / max(1, len(view.history.lives))
    hard = hard if hard is not None else max([*known, first])
    soft = soft if soft is not None else hard
    return Costs(
        step=step,
        save=stall,
        write=(view.write_seconds or 0.0) if view.mode == "async" else 0.0,
        snapshot=view.snapshots.mean,
        soft_recovery=soft,
        hard_recovery=hard,
    )


def advice_rows(view: RunView) -> tuple[list[tuple[str, ...]], str]:
    """Rows (GPUs, time between faults, save every, snapshot every, goodput) and a line that states the costs."""
    costs = measured_costs(view)
    if costs is None:
        return [], ""
    memory = restores_from_memory(view)
    rows: list[tuple[str, ...]] = []
    for devices in SCALES:
        advice = advise(costs, FaultRates.of_fleet(devices), snapshots=memory)
        hours = GPU_HOURS_BETWEEN_FAULTS / devices
        rows.append((f"{devices:,} GPUs", _duration(3600 * hours), *_advice_cells(advice, costs)))
    note = (
        f"From this run's costs: step {costs.step:.3g} s, stall of a save {costs.save:.3g} s, "
        f"write {costs.write:.3g} s, stall of a snapshot {costs.snapshot:.3g} s, "
        f"recovery {costs.soft_recovery:.3g} s from memory, {costs.hard_recovery:.3g} s from storage; "
        f"at one fault in {GPU_HOURS_BETWEEN_FAULTS:,.0f} GPU hours (Llama 3 pre-training on 16,384 H100), "
        "half of them soft; costs taken as they are, whatever the scale"
    )
    return rows, note


ADVICE_COLUMNS: Sequence[str] = ("scale", "a fault every", "save every", "snapshot every", "expected goodput")


def _advice_cells(advice: Advice, costs: Costs) -> tuple[str, str, str]:
    every = f"{advice.every:,} steps ({_duration(advice.every * costs.step)})"
    if advice.bound_by_write:
        every += ", bound by the write"
    snapshot = f"{advice.snapshot_every:,} steps" if advice.snapshot_every else "-"
    return every, snapshot, f"{100 * advice.goodput:.2f} %"


def _mean(recoveries: Sequence[Recovery]) -> float | None:
    done = [r.total / NS for r in recoveries if r.finished]
    return sum(done) / len(done) if done else None


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    if seconds < 120:
        return f"{seconds:.3g} s"
    for unit, name in ((60, "min"), (3600, "h")):
        if seconds < 120 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86400:,.0f} days"
