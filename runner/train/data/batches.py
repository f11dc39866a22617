"""Micro batches of one rank: from packed data (a function of the step) or from a stream (with its own state)."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import signal
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.system.process import DATA_WORKER, die_with_parent, name_this_process, process_name
from runner.train.data.order import GlobalOrder
from runner.train.data.packed import PackedTokens
from runner.train.data.watch import Watched

_KILLED_WITHIN = 5.0  # seconds
# Those that have started workers and were not closed.
_with_workers: weakref.WeakSet[PackedBatches] = weakref.WeakSet()


class BatchSource(Protocol):
    """Yields one rank's micro batches."""

    def start(self, step: int, state: dict[str, Any]) -> None:
        """Go on after `step` optimiser steps, with the state that `state()` gave then (empty at the beginning).

        Raises:
            InputError: the state belongs to another world size and cannot be split anew.
        """

    def micro_batches(self) -> Iterator[torch.Tensor]:
        """The micro batches of the next step: int64, shape (micro_batch_size, sequence_length + 1), on the CPU."""

    def state(self) -> dict[str, Any]:
        """What `start` needs to go on after the last step (JSON values)."""

    def abandon(self) -> None:
        """A fault has ended the life: nothing more will be asked for. Any thread; does not block."""

    def close(self) -> None:
        """Stop worker processes."""


class _Sequences(Dataset[torch.Tensor]):
    def __init__(self, tokens: PackedTokens) -> None:
        self._tokens = tokens

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._tokens[index])


class PackedBatches:
    """Micro batches of packed data: a function of (seed, step, global batch size), so no state is kept.

    Args:
        recipe: sizes, seed, workers.
        tokens: the packed data.
        rank, world_size: which part of each global batch is yielded.
    """

    def __init__(self, recipe: Recipe, tokens: PackedTokens, rank: int, world_size: int) -> None:
        training = recipe.training
        self._order = GlobalOrder(
            len(tokens), training.global_batch_size, training.seed, shuffle=recipe.dataset.shuffle
        )
        self._micro = training.micro_batch_size
        self._tokens, self._rank, self._world = _Sequences(tokens), rank, world_size
        self._per_step = training.global_batch_size // world_size // self._micro
        self._last_step = training.steps
        self._workers = recipe.dataset.workers
        self._timeout = recipe.dataset.worker_timeout.total_seconds()
        self._loading: Iterator[torch.Tensor] = iter(())
        self._stream = Watched(self._loading, 0.0, _kill_data_workers, self._forget_workers)

    def start(self, step: int, state: dict[str, Any]) -> None:
        """See `BatchSource.start`; `state` is not needed.

        A rank has one source at a time. Another one with workers is what an in-process restart has left that broke
        into its `close`: torch would take the end of its workers for a fault, and its watch would kill ours.
        """
        if self._workers:
            for left in list(_with_workers):
                left.close()
            _with_workers.add(self)
        loader: DataLoader[torch.Tensor] = DataLoader(
            self._tokens,
            batch_sampler=list_sampler(self._indices(step)),
            num_workers=self._workers,
            worker_init_fn=_die_with_parent if self._workers else None,
            multiprocessing_context="fork" if self._workers else None,
        )
        self._loading = iter(loader)
        limit = self._timeout if self._workers else 0.0
        self._stream = Watched(self._loading, limit, _kill_data_workers, self._forget_workers)

    def micro_batches(self) -> Iterator[torch.Tensor]:
        """See `BatchSource.micro_batches`."""
        for _ in range(self._per_step):
            yield next(self._stream)

    def state(self) -> dict[str, Any]:
        """Nothing: the step says it all."""
        return {}

    def abandon(self) -> None:
        """See `BatchSource.abandon`: the worker processes are killed.

        What ends a life may break into its `close`. The iterator's own end then waits for each worker that still lives,
        5 s at the most, while the ranks that have no such wait expect this one in the next life.

        A rank that waits for a worker now is in native code, for 5 s at a time, or for ever in the middle of what the
        worker sends: no exception that is set from outside arrives there. The signal that a worker has ended does,
        where torch still looks for it.
        """
        self._stream.close()
        if not self._stream.waits:
            self._forget_workers()
        if self._workers:
            _kill_data_workers()

    def close(self) -> None:
        """Kill the worker processes, which hold nothing.

        Not left to the iterator's end: the traceback of the very exception that ends a life may hold on to it, and
        torch asks first, for 10 s each, which a frozen worker does not hear.
        """
        self._stream.close()
        self._forget_workers()
        loading, self._loading = self._loading, iter(())
        if isinstance(loading, _MultiProcessingDataLoaderIter):
            # Those of this loader by name or not: one that was forked a moment ago has not named itself yet.
            for child in {*_data_workers(), *loading._workers}:
                child.kill()
                child.join(_KILLED_WITHIN)
            loading._shutdown_workers()
        _with_workers.discard(self)

    def _forget_workers(self) -> None:
        """Have torch's signal handler take the end of workers for no fault any more."""
        loading = self._loading
        if isinstance(loading, _MultiProcessingDataLoaderIter) and loading._worker_pids_set:
            # Done already where a `close` was broken into before it could note it.
            with contextlib.suppress(ValueError):
                signal_handling._remove_worker_pids(id(loading))
            loading._worker_pids_set = False

    def _indices(self, step: int) -> Iterator[list[int]]:
        for later in range(step + 1, self._last_step + 1):
            mine = self._order.rank_batch(later, self._rank, self._world)
            for begin in range(0, len(mine), self._micro):
                yield mine[begin : begin + self._micro].tolist()


class list_sampler:
    """A one-shot iterator as a batch sampler."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


def _data_workers() -> list[multiprocessing.process.BaseProcess]:
    return [
        child for child in multiprocessing.active_children() if process_name(child.pid or 0) == DATA_WORKER
    ]


def _kill_data_workers() -> None:
    """Kill them without taking their status: torch, in the main thread, looks for it and raises what it finds."""
    for child in _data_workers():
        child.kill()


def _die_with_parent(_worker: int) -> None:
    """A data worker must not outlive its rank, which may die by SIGKILL."""
    rank = multiprocessing.parent_process()
    assert rank is not None and rank.pid is not None
    die_with_parent(rank.pid)
    name_this_process(DATA_WORKER)
    # The rank's handlers (preemption) are inherited by fork and mean nothing here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_batch_arithmetic(recipe: Recipe, world_size: int) -> None:
    """Every rank must get whole micro batches.

    Raises:
        InputError: the global batch does not divide.
    """
    training = recipe.training
    quantum = training.micro_batch_size * world_size
    if training.global_batch_size % quantum:
        raise InputError(
            f"training.global_batch_size: {training.global_batch_size} is not a multiple of micro_batch_size x ranks "
            f"({training.micro_batch_size} x {world_size} = {quantum})"
        )


def to_device(batch: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64, shape (micro_batch_size, sequence_length) each, on `device`."""
    if device.type == "cuda":
        batch = batch.pin_memory().to(device, non_blocking=True)
    return batch[:, :-1], batch[:, 1:]


def as_rows(rows: list[np.ndarray]) -> torch.Tensor:
    """Equal-length token rows as one tensor: shape (rows, length)."""
    return torch.from_numpy(np.stack(rows))
