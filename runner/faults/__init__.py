"""Faults injected on purpose, and the records of all that happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.faults.injector import ScheduledFaults
    from runner.recipe.recipe import Recipe
    from runner.train.ports import Ledger


def build_injector(recipe: Recipe, ledger: Ledger) -> ScheduledFaults:
    """The injector of a recipe's faults, in a worker process; strikes outside of steps too where `ledger` can."""
    import os

    from runner.faults.injector import FaultingLedger, ScheduledFaults

    faults = ScheduledFaults.of_recipe(recipe, int(os.environ["WORLD_SIZE"]), ledger)
    if isinstance(ledger, FaultingLedger):
        ledger.faults = faults
    return faults
