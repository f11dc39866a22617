"""R5xx: checkpoints and the storage they go to."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.derived import RUN_PARTS
from runner.recipe.estimate import kept_checkpoints
from runner.recipe.quantity import parse_quantity
from runner.recipe.units import format_size

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NODE_LOCAL = ("/dev/shm", "/tmp", "/var/tmp", "/run", "/proc", "/sys")


@rule("R501", "warning")
def write_fits_interval(recipe: Recipe, report: Report) -> None:
    """A checkpoint should be written before the next one is due.

    Else training waits for the writer (`on_busy: wait`) or checkpoints are left out (`on_busy: skip`). The time between
    two checkpoints is estimated from the model's size and 35 % of the GPUs' peak.
    """
    write, step, every = report.facts.write_seconds, report.facts.step_seconds, recipe.checkpoint.every
    if write is None or step is None or write <= every * step:
        return
    outcome = {
        "sync": "training spends most of its time saving",
        "async": "training waits" if recipe.checkpoint.on_busy == "wait" else "checkpoints are left out",
    }[recipe.checkpoint.mode]
    report.add(
        "checkpoint.every",
        f"{every} steps take about {every * step:.0f} s and writing a checkpoint {write:.0f} s: {outcome}",
        f"use at least {-(-write // step):.0f}; checkpoint.snapshot_every makes soft faults cheap meanwhile",
        also="checkpoint.storage_bandwidth",
    )


@rule("R502")
def retention_fits_storage(recipe: Recipe, report: Report) -> None:
    """The checkpoints that are kept must fit the file system (`cluster.kubernetes.storage.capacity`).

    Kept are `keep_last`, the multiples of `keep_every` up to the last step, and the one that is being written.
    """
    kubernetes, size = recipe.cluster.kubernetes, report.facts.checkpoint_bytes
    capacity = getattr(kubernetes.storage, "capacity", None) if kubernetes else None
    if capacity is None or size is None:
        return
    count = kept_checkpoints(recipe)
    room = int(parse_quantity(capacity) or 0)
    if count * size > room:
        blame = "keep_every" if recipe.checkpoint.keep_every else "keep_last"
        report.add(
            f"checkpoint.{blame}",
            f"{count} checkpoints of {format_size(size)} make {format_size(count * size)}, and the storage has "
            f"{capacity}",
            f"keep fewer: {room // size} fit, the one being written included",
            also="cluster.kubernetes.storage.capacity",
        )


@rule("R503", "warning")
def milestones_are_saved(recipe: Recipe, report: Report) -> None:
    """`checkpoint.keep_every` should be a multiple of `every`: only steps that are saved can be kept."""
    checkpoint = recipe.checkpoint
    if checkpoint.keep_every is not None and checkpoint.keep_every % checkpoint.every:
        above = -(-checkpoint.keep_every // checkpoint.every) * checkpoint.every
        report.add(
            "checkpoint.keep_every",
            f"multiples of {checkpoint.keep_every} are mostly not saved: checkpoints come every {checkpoint.every} "
            "steps",
            f"use {above}",
            also="checkpoint.every",
        )


@rule("R504", "warning")
def folders_are_shared(recipe: Recipe, report: Report) -> None:
    """With several nodes, the run's and the checkpoints' folders should be on storage that all nodes see.

    `/tmp`, `/dev/shm` and the like are each node's own: every node would commit checkpoints that hold its shards only.
    """
    if recipe.cluster.nodes == 1 or recipe.cluster.kubernetes is not None:
        return
    for path, folder in (
        ("output.folder", recipe.output.folder),
        ("checkpoint.folder", recipe.checkpoint.folder),
    ):
        inside = next(
            (root for root in _NODE_LOCAL if folder and PurePosixPath(folder).is_relative_to(root)), None
        )
        if inside is not None:
            report.add(
                path,
                f"{folder} is each node's own: {inside} is not shared",
                "use the shared file system",
                also="cluster.nodes",
            )


@rule("R505", "warning")
def run_saves_before_its_end(recipe: Recipe, report: Report) -> None:
    """`checkpoint.every` above `training.steps` saves nothing before the last step: a lost node costs the whole run."""
    every, steps = recipe.checkpoint.every, recipe.training.steps
    if every > steps:
        report.add(
            "checkpoint.every",
            f"{every} is more than the run's {steps} steps: nothing is saved before the end",
            f"use less than {steps}",
            also="training.steps",
        )


@rule("R506", "warning")
def snapshots_come_before_checkpoints(recipe: Recipe, report: Report) -> None:
    """`checkpoint.snapshot_every` above `every` takes no snapshot but those of the checkpoints."""
    checkpoint = recipe.checkpoint
    if checkpoint.snapshot_every is not None and checkpoint.snapshot_every > checkpoint.every:
        report.add(
            "checkpoint.snapshot_every",
            f"{checkpoint.snapshot_every} is above checkpoint.every ({checkpoint.every}), which snapshots anyway",
            "leave it out, or use less",
            also="checkpoint.every",
        )


@rule("R508", "warning")
def snapshots_serve_a_restart(recipe: Recipe, report: Report) -> None:
    """`checkpoint.snapshot_every` serves restarts that keep host memory; with `recovery.layer: none` there are none.

    A fault ends such a run, and the next command goes on from a checkpoint.
    """
    if recipe.recovery.layer == "none" and recipe.checkpoint.snapshot_every is not None:
        report.add(
            "checkpoint.snapshot_every",
            "recovery.layer none never goes on from a snapshot: a fault ends the run and the memory with it",
            "leave it out, or use a layer that restarts",
            also="recovery.layer",
        )


@rule("R509")
def checkpoints_have_a_folder_of_their_own(recipe: Recipe, report: Report) -> None:
    """`checkpoint.folder` must be no folder that a run keeps other things in: its own, or one of its parts.

    Folders in it that look like unfinished checkpoints are removed.
    """
    if recipe.checkpoint.folder is None:
        return
    run = PurePosixPath(recipe.output.folder or f"runs/{recipe.name}")
    folder = PurePosixPath(recipe.checkpoint.folder)
    if folder == run or any(folder.is_relative_to(run / part) for part in RUN_PARTS):
        report.add(
            "checkpoint.folder",
            f"{folder} is where the run itself keeps other things",
            f"leave it out ({run / 'checkpoints'}), or use a folder of its own",
            also="output.folder",
        )


@rule("R507")
def folders_are_in_a_file_system(recipe: Recipe, report: Report) -> None:
    """The run's and the checkpoints' folders are paths, not addresses: object stores (`s3://`) are not supported.

    A checkpoint is committed by renaming its folder, which happens at once or not at all. Object stores have no
    rename of a folder: objects would be copied one by one, and a reader could meet half a checkpoint.
    """
    for path, folder in (
        ("output.folder", recipe.output.folder),
        ("checkpoint.folder", recipe.checkpoint.folder),
    ):
        if folder and _ADDRESS.match(folder):
            report.add(
                path,
                f"{folder} is an address: object stores cannot rename a folder, which is what commits a checkpoint",
                "use a local or shared folder, and copy committed checkpoints (step-<N>) from there",
            )
