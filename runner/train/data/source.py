"""Data of a run: prepared once by one rank, then handed out to each life's ranks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from runner.errors import BusyError, ExitCode, RunError
from runner.recipe.recipe import Recipe
from runner.train.data.batches import BatchSource, PackedBatches
from runner.train.data.cache import is_prepared
from runner.train.data.packed import PackedTokens, packed_folder, prepare
from runner.train.data.streaming import StreamingBatches
from runner.train.data.text import is_streaming
from runner.train.data.tokenizer import Tokenizer, load_tokenizer
from runner.train.hub import with_backoff
from runner.train.ports import Life

_POLL = 0.05
_BUSY = "busy"
_ALONE = timedelta(days=7)  # nobody waits for a rank that is alone
_MARGIN = 15.0  # seconds; a rank 0 that hangs is stopped before the others lose their patience


class DataPreparation:
    """Prepares the data when it is first asked for; survives in-process restarts.

    Rank 0 alone fetches and packs, the others wait for it: a hub sees one client, however large the run.

    Args:
        recipe: the run.
        timeout: longest the other ranks wait for the preparation.
        log: told of data whose damage would go unnoticed, and of a hub that is busy.
        tokenizer: the recipe's, where somebody has loaded it.

    Raises:
        InputError: tokenizer or dataset cannot be loaded, on every rank.
        BusyError: their hub turns us away.
    """

    def __init__(
        self, recipe: Recipe, timeout: timedelta, log: Any, tokenizer: Tokenizer | None = None
    ) -> None:
        self._recipe, self._timeout, self._log = recipe, timeout, log
        self.tokenizer: Tokenizer = tokenizer or load_tokenizer(recipe)
        self._packed: PackedTokens | None = None

    def batches(self, life: Life) -> BatchSource:
        """The batch source of this rank in this life."""
        if is_streaming(self._recipe.dataset):
            return StreamingBatches(self._recipe, self.tokenizer, life.rank, life.world_size)
        if self._packed is None:
            self._prepare(life)
            life.starting("data", self._recipe.recovery.start_timeout)
            folder = packed_folder(self._recipe)
            self._packed = PackedTokens(folder, self._recipe.dataset.sequence_length)
            if life.rank == 0 and not self._packed.has_checksums:
                self._log.warning(
                    "the prepared data have no checksums: an earlier version made them, damage goes unnoticed",
                    folder=str(folder),
                    remedy="remove the folder to have them made anew",
                )
        return PackedBatches(self._recipe, self._packed, life.rank, life.world_size)

    def _prepare(self, life: Life) -> None:
        if life.rank == 0:
            life.starting("preparation", self._timeout if life.world_size > 1 else _ALONE)
            try:
                with_backoff(
                    lambda: prepare(self._recipe, self.tokenizer),
                    within=self._timeout.total_seconds() / 2,
                    say=self._log.warning,
                )
            except Exception as error:
                # The others wait for this rank: tell them before it fails alone.
                code = error.exit_code if isinstance(error, RunError) else ExitCode.CRASHED
                kind = _BUSY if isinstance(error, BusyError) else str(int(code))
                life.store.set("data", f"{kind} {error}")
                raise
            life.store.set("data", "ready")
            return
        if is_prepared(packed_folder(self._recipe)):
            return
        deadline = time.monotonic() + self._timeout.total_seconds() + _MARGIN
        while not life.store.check(["data"]):
            if time.monotonic() > deadline:
                raise RunError(
                    f"rank {life.rank} waited {self._timeout.total_seconds():.0f} s (recovery.rendezvous_timeout) "
                    "for rank 0 to prepare the dataset; prepare it beforehand or raise the timeout"
                )
            time.sleep(_POLL)
        answer = life.store.get("data").decode()
        if answer != "ready":
            kind, _, message = answer.partition(" ")
            raise BusyError(message) if kind == _BUSY else RunError(message, ExitCode(int(kind)))
