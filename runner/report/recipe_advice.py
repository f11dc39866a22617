"""How often a recipe should save: from the costs that its own run measured, else from what the recipe lets guess."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InputError
from runner.ledger.interval import GPU_HOURS_BETWEEN_FAULTS, Costs, FaultRates, advise, expected_goodput
from runner.recipe.units import rough_duration
from runner.report.advice import measured_costs, restores_from_memory

GUESSED_SOFT_RECOVERY = 5.0
"""Seconds from a soft fault to training again, from memory, where nobody has measured it."""
GUESSED_RESPAWN = 30.0
"""Seconds from a hard fault to processes that are ready to load, where nobody has measured it."""
GUESSED_STALL = 0.01
"""Share of a step that training waits for a snapshot or the staging of a save, where nobody has measured it."""


@dataclass(frozen=True)
class RecipeCosts:
    """What a recipe alone tells; None: not known.

    Attributes:
        ranks: world size.
        on_gpus: whether each has a GPU.
        step: seconds of a step.
        write: seconds of a write.
    """

    ranks: int | None
    on_gpus: bool | None
    step: float | None
    write: float | None
    mode: str
    layer: str
    every: int
    snapshot_every: int | None


def interval_advice(recipe: RecipeCosts, run_folder: Path) -> list[str]:
    """Lines to print: the advised intervals, where they come from, and what the recipe has."""
    costs, memory, source = _costs(recipe, run_folder)
    if costs is None or recipe.ranks is None:
        return [
            "not known: it takes the time of a step and of a write (a known instance type and storage_bandwidth,",
            "or a run: once this recipe's run has saved, its own costs are used here)",
        ]
    rates = FaultRates.of_fleet(recipe.ranks)
    advice = advise(costs, rates, snapshots=memory)
    hours = GPU_HOURS_BETWEEN_FAULTS / recipe.ranks
    devices = _count(recipe.ranks, "GPU" if recipe.on_gpus else "rank")
    if recipe.on_gpus is False:
        devices += " on CPUs, each taken for a GPU"
    own = expected_goodput(costs, rates, recipe.every, recipe.snapshot_every if memory else None)
    every = f"every: {advice.every:,} steps" + (
        " (as often as a write allows)" if advice.bound_by_write else ""
    )
    if advice.snapshot_every is not None:
        every += f", snapshot_every: {advice.snapshot_every:,}"
    has = f"every: {recipe.every:,}" + (
        f", snapshot_every: {recipe.snapshot_every:,}" if recipe.snapshot_every else ""
    )
    return [
        f"{every}; expected goodput {100 * advice.goodput:.2f} %",
        f"this recipe: {has}; expected goodput {100 * own:.2f} %",
        f"at a fault every {hours:,.0f} h: {devices}, one in {GPU_HOURS_BETWEEN_FAULTS:,.0f} GPU hours as in "
        "the Llama 3 pre-training, half of them soft",
        f"costs {source}: step {_rough(costs.step)}, save {_rough(costs.save)}, "
        f"write {_rough(costs.write)} beside training, snapshot {_rough(costs.snapshot)}, "
        f"recovery {_rough(costs.soft_recovery)} soft, {_rough(costs.hard_recovery)} hard",
        "(Young 1974, Daly 2006, two levels after Vaidya 1998 and Di et al. 2017; docs/goodput.md)",
    ]


def _rough(seconds: float) -> str:
    return rough_duration(seconds, 3)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _costs(recipe: RecipeCosts, run_folder: Path) -> tuple[Costs | None, bool, str]:
    memory = "inprocess" in recipe.layer
    if any((run_folder / "ledger").glob("*.jsonl")):
        from runner.report.view import view_run

        view = None
        with suppress(InputError):  # it holds nothing yet
            view = view_run(run_folder)
        costs = measured_costs(view) if view is not None else None
        if view is not None and costs is not None:
            return costs, restores_from_memory(view), f"measured in {run_folder}"
    if recipe.step is None or recipe.write is None:
        return None, memory, ""
    blocking = recipe.mode == "sync"
    stall = GUESSED_STALL * recipe.step
    guessed = Costs(
        step=recipe.step,
        save=recipe.write if blocking else stall,
        write=0.0 if blocking else recipe.write,
        snapshot=stall,
        soft_recovery=GUESSED_SOFT_RECOVERY,
        hard_recovery=GUESSED_RESPAWN + recipe.write,  # a load takes about as long as a write
    )
    return guessed, memory, "guessed from the recipe"


def as_section(lines: Sequence[str]) -> str:
    """The lines as a section of `--explain`."""
    return "\nHOW OFTEN TO SAVE\n" + "".join(f"  {line}\n" for line in lines)
