"""R2xx: batches and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.derived import world_size

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


@rule("R201")
def batch_divides(recipe: Recipe, report: Report) -> None:
    """The global batch is a multiple of micro batch x ranks."""
    training, ranks = recipe.training, world_size(recipe)
    if ranks is None:
        return
    unit = training.micro_batch_size * ranks
    if training.global_batch_size % unit:
        below, above = (
            training.global_batch_size // unit * unit,
            -(-training.global_batch_size // unit) * unit,
        )
        report.add(
            "training.global_batch_size",
            f"{training.global_batch_size} is no multiple of micro_batch_size {training.micro_batch_size} x "
            f"{ranks} ranks = {unit}",
            f"use {above}" + (f" or {below}" if below else ""),
            also="training.micro_batch_size",
        )
