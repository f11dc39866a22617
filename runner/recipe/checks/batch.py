"""R2xx: steps, batches and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.layer_settings import inprocess

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_MOST_TRIED = 10_000  # numbers of ranks


@rule("R201")
def batch_divides(recipe: Recipe, report: Report) -> None:
    """`training.global_batch_size` must be a multiple of `micro_batch_size` x ranks.

    Every rank processes the same number of micro batches a step.
    """
    training, ranks = recipe.training, report.facts.ranks
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


@rule("R202")
def micro_batch_fits_batch(recipe: Recipe, report: Report) -> None:
    """`training.micro_batch_size` must divide `global_batch_size`, whatever the number of ranks."""
    training = recipe.training
    if report.facts.ranks is None and training.global_batch_size % training.micro_batch_size:
        report.add(
            "training.micro_batch_size",
            f"{training.micro_batch_size} does not divide global_batch_size {training.global_batch_size}",
            "make it a divisor",
            also="training.global_batch_size",
        )


@rule("R203")
def warmup_ends_before_decay(recipe: Recipe, report: Report) -> None:
    """`training.schedule.warmup_steps` must be below the step at which the schedule's curve ends."""
    schedule = recipe.training.schedule
    end = schedule.decay_steps or recipe.training.steps
    if schedule.kind != "constant" and schedule.warmup_steps >= end:
        report.add(
            "training.schedule.warmup_steps",
            f"{schedule.warmup_steps} steps of warm-up leave nothing of the curve, which ends at step {end}",
            f"use fewer than {end}",
            also="training.schedule.decay_steps" if schedule.decay_steps else "training.steps",
        )


@rule("R204", "warning")
def schedule_outlives_run(recipe: Recipe, report: Report) -> None:
    """`training.schedule.decay_steps` is below `training.steps`: the rest of the run trains at the lowest rate."""
    schedule, steps = recipe.training.schedule, recipe.training.steps
    if schedule.decay_steps is not None and schedule.kind != "constant" and schedule.decay_steps < steps:
        report.add(
            "training.schedule.decay_steps",
            f"the curve ends at step {schedule.decay_steps} of {steps}; the rest runs at "
            f"{schedule.min_lr_ratio:g} of the peak rate",
            also="training.steps",
        )


@rule("R205")
def fewest_ranks_exist(recipe: Recipe, report: Report) -> None:
    """`recovery.inprocess.min_world_size` must not exceed the number of ranks."""
    s, ranks = inprocess(recipe), report.facts.ranks
    if s and s.min_world_size is not None and ranks is not None and s.min_world_size > ranks:
        report.add(
            "recovery.inprocess.min_world_size",
            f"{s.min_world_size} ranks are needed and the run has {ranks}",
            f"use at most {ranks}",
        )


@rule("R206")
def streaming_keeps_its_ranks(recipe: Recipe, report: Report) -> None:
    """A streamed dataset cannot go on with fewer ranks: `recovery.inprocess.min_world_size` must be all of them.

    The state of a stream belongs to its rank and cannot be redistributed.
    """
    s, ranks = inprocess(recipe), report.facts.ranks
    streaming = getattr(recipe.dataset, "streaming", False)
    if streaming and s and s.min_world_size is not None and ranks is not None and s.min_world_size < ranks:
        report.add(
            "recovery.inprocess.min_world_size",
            f"{s.min_world_size} of {ranks} ranks cannot go on: a streamed dataset's state belongs to its rank",
            "leave it out, or set `dataset.streaming: false`",
            also="dataset.streaming",
        )


@rule("R207")
def fewer_ranks_divide_batch(recipe: Recipe, report: Report) -> None:
    """Some number of ranks from `min_world_size` up to one less than all must divide the global batch.

    After a rank is given up the run goes on with fewer; if no smaller number divides the batch, it cannot.
    """
    s, ranks, training = inprocess(recipe), report.facts.ranks, recipe.training
    if not s or s.min_world_size is None or ranks is None or s.min_world_size >= ranks:
        return
    rounds = training.global_batch_size // training.micro_batch_size
    last = min(ranks, rounds + 1, s.min_world_size + _MOST_TRIED)
    if not any(rounds % fewer == 0 for fewer in range(s.min_world_size, last)):
        report.add(
            "recovery.inprocess.min_world_size",
            f"no number of ranks from {s.min_world_size} to {ranks - 1} divides the {rounds} micro batches of a step",
            "leave it out, lower it, or change training.global_batch_size",
            also="training.global_batch_size",
        )
