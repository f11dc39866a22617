"""One rank's work, from the resolved recipe: the one place where the parts are plugged together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import structlog

from runner.checkpoint.manager import build_checkpointer
from runner.checkpoint.shm import current_run_id, name_semaphores
from runner.control.channel import Control
from runner.control.presence import Presence
from runner.errors import BusyError, InputError
from runner.faults.injector import FaultingLedger, ScheduledFaults
from runner.launch.terminal import take_terminal
from runner.ledger.writer import LedgerWriter
from runner.recipe.load import read_resolved
from runner.recipe.recipe import Recipe
from runner.recipe.resolve import resolve
from runner.recovery.run import run_with_recovery
from runner.train.data.source import DataPreparation
from runner.train.data.tokenizer import Tokenizer, load_tokenizer
from runner.train.kernels import find_kernel_times
from runner.train.log import configure
from runner.train.loop import LoopParts
from runner.train.ports import Life
from runner.train.setup import ModelFactory, pick_device
from runner.train.trainer import Trainer
from runner.train.waiting import PeerWaits

# What torch, numpy and NVRx import only when they come to it, in a worker's first step.
_LATE_IMPORTS = (
    "encodings.idna", "multiprocessing.popen_fork", "multiprocessing.popen_spawn_posix", "multiprocessing.queues",
    "numpy.ma",
)  # fmt: skip
_prebuilt: list[tuple[Tokenizer, ModelFactory]] = []  # made by the fork server before it forks


def preload(recipe_path: Path) -> None:
    """Import and build everything that does not need a rank, so that forked workers have it."""
    for name in _LATE_IMPORTS:
        import_module(name)
    recipe = read_resolved(recipe_path)
    try:
        tokenizer = load_tokenizer(recipe)
        _prebuilt.append((tokenizer, ModelFactory(recipe, tokenizer)))
    except (InputError, BusyError):
        return  # the first worker meets the same error and reports it as its own


def work(recipe_path: Path, overrides: Sequence[str], presence: Presence) -> int:
    """Train one rank to the end of the run; returns the product's exit code.

    Args:
        recipe_path: the resolved recipe; under a launcher that was started by hand, the one that the user wrote.
        overrides: `section.key=value` texts on the latter.
        presence: tells the supervisor how far this worker is.

    Raises:
        SystemExit: the run is not done; the code says why.
    """
    recipe = resolve(read_resolved(recipe_path, overrides), cwd=Path.cwd())
    rank = int(os.environ["RANK"])
    name_semaphores(current_run_id(recipe.name))
    take_terminal(rank)
    log = configure(recipe.output, recipe.run_folder, rank)
    writer = LedgerWriter(recipe.run_folder, rank=rank, life="")
    ledger = FaultingLedger(writer)
    with contextlib.ExitStack() as stack:
        stack.callback(writer.close)
        trainers: list[Trainer] = []

        def train(life: Life) -> None:
            # Built inside the layer, so that it judges and reports what goes wrong here like any other error.
            if not trainers:
                life.starting("data", recipe.recovery.start_timeout)
                trainers.append(_plug_together(recipe, ledger, log, life, stack))
            trainers[0](life)

        run_with_recovery(recipe, train, ledger, log, presence)
    return 0


def _plug_together(
    recipe: Recipe,
    ledger: FaultingLedger,
    log: structlog.stdlib.BoundLogger,
    life: Life,
    stack: contextlib.ExitStack,
) -> Trainer:
    checkpointer = build_checkpointer(recipe, ledger, log, device=pick_device(recipe, life.local_rank))
    stack.callback(checkpointer.close)
    control = Control.from_environment()
    waits = kernels = None
    if recipe.recovery.stragglers is not None:
        waits = PeerWaits()
        if pick_device(recipe, life.local_rank).type == "cuda":
            kernels = find_kernel_times(log)
    ledger.faults = ScheduledFaults.of_recipe(recipe, life.world_size, ledger)
    parts = LoopParts(
        recipe=recipe,
        ledger=ledger,
        log=log,
        checkpointer=checkpointer,
        faults=ledger.faults,
        stop_requested=lambda: control.stop_requested() is not None,
        waits=waits,
        kernels=kernels,
    )
    tokenizer, factory = _prebuilt[0] if _prebuilt else (None, None)
    return Trainer(
        parts, DataPreparation(recipe, recipe.recovery.rendezvous_timeout, log, tokenizer), factory
    )
