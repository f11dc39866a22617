"""`nvrx-run --faults`: what is planned, what has fired, and what is known about every fault that happened."""

from __future__ import annotations

import time
from pathlib import Path

from runner.faults.fired import FiredFaults
from runner.faults.records import NO_RANK, FaultRecord, cause_of, damaged_records, read_records
from runner.recipe.derived import world_size
from runner.recipe.fault_schedule import fault_schedule
from runner.recipe.recipe import Recipe

_STACK_LINES = 12


def schedule_text(recipe: Recipe) -> str:
    """The schedule of injected faults, and the post-mortem of the run in the recipe's folder."""
    return "\n\n".join((_planned(recipe), post_mortem(recipe.run_folder)))


def _planned(recipe: Recipe) -> str:
    ranks = world_size(recipe)
    if ranks is None:
        return "planned faults: the number of ranks is only known on the machine (cluster.processes_per_node)"
    planned = fault_schedule(recipe.faults, steps=recipe.training.steps, world_size=ranks)
    if not planned:
        return "planned faults: none"
    record = FiredFaults(recipe.run_folder)
    fired = {fault.index for fault in planned if record.has(fault)}
    widest = max(len(fault.type) for fault in planned)
    lines = [f"planned faults ({len(planned)}, {len(fired)} fired)"]
    for fault in planned:
        where = "" if fault.phase == "step" else f", in {fault.phase}"
        mark = "fired" if fault.index in fired else "due"
        lines.append(f"  step {fault.step:>6}  rank {fault.rank:>4}  {fault.type:<{widest}}  {mark}{where}")
    return "\n".join(lines)


def post_mortem(run_folder: Path) -> str:
    """One block for each fault that happened: the rank that had it first, then what the others saw."""
    if not run_folder.is_dir():
        return f"faults that happened: the run has not started, {run_folder} is not there"
    records, damaged = read_records(run_folder), damaged_records(run_folder)
    left_out = "".join(f"\nleft out, for it is damaged: {path}" for path in damaged)
    if not records:
        return "faults that happened: none" + left_out
    lives: dict[str, list[FaultRecord]] = {}
    for record in records:
        lives.setdefault(record.attempt, []).append(record)
    blocks = [_block(number, found) for number, found in enumerate(lives.values(), 1)]
    return f"faults that happened ({len(lives)})\n" + "\n".join(blocks) + left_out


def _block(number: int, records: list[FaultRecord]) -> str:
    """`records` are of one life."""
    cause = cause_of(records)
    lines = [
        f"{number}. {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(cause.time))} UTC, life {cause.attempt}, "
        f"layer {cause.layer}",
        f"   {cause}"
        if cause.rank == NO_RANK
        else f"   {cause.kind} on rank {cause.rank} after step {cause.step}: {cause.what}",
    ]
    if cause.phase:
        lines.append(f"   at {cause.phase}")
    stacks = cause.stacks.strip().splitlines()
    if stacks:
        lines += [f"   | {line}" for line in stacks[-_STACK_LINES:]]
    for record in records:
        if record is not cause:
            who = "" if record.rank == NO_RANK else f"rank {record.rank}: "
            lines.append(f"   {who}{record.kind} after step {record.step}: {record.what}")
    return "\n".join(lines)
