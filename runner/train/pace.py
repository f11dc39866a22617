"""Which rank is slower than the others: compared every few steps, named in the log by rank 0 and kept in the ledger."""

from __future__ import annotations

import time

import structlog

from runner.ledger.events import PaceMeasured
from runner.ledger.stragglers import slow_ranks
from runner.recipe.recovery import StragglerSettings
from runner.train.ports import Ledger, Life
from runner.train.waiting import PeerWaits


class Pace:
    """Measures this rank through one life.

    The ranks tell each other through the life's store, one comparison late, so that nobody waits for it.
    """

    def __init__(
        self,
        settings: StragglerSettings,
        waits: PeerWaits,
        life: Life,
        ledger: Ledger,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._settings, self._waits, self._life = settings, waits, life
        self._ledger, self._log = ledger, log
        self._round = 0
        self._told: tuple[int, float] | None = None  # last step and seconds of the round before
        self._first: int | None = None
        self._began = 0.0

    def step_begins(self, step: int) -> None:
        """`step` is about to be made; the one before is finished on the host."""
        if self._first is None:
            self._begin(step)
        elif step - self._first >= self._settings.every:
            self._compare(step - 1)
            self._begin(step)

    def _begin(self, step: int) -> None:
        self._first, self._began = step, time.monotonic()
        self._waits.take()

    def _compare(self, last: int) -> None:
        assert self._first is not None
        seconds = time.monotonic() - self._began
        own = max(0.0, seconds - self._waits.take())
        factor = self._settings.factor
        self._ledger.record(PaceMeasured(self._first, last, seconds, own, factor))
        store, rank = self._life.store, self._life.rank
        if self._told is not None and rank == 0:
            keys = [self._key(self._round - 1, peer) for peer in range(self._life.world_size)]
            if store.check(keys):
                found = {peer: float(store.get(key)) for peer, key in enumerate(keys)}
                self._name(found, *self._told)
        if self._round > 1:
            store.delete_key(self._key(self._round - 2, rank))
        store.set(self._key(self._round, rank), repr(own))
        self._round, self._told = self._round + 1, (last, seconds)

    def _name(self, own: dict[int, float], last: int, seconds: float) -> None:
        for slow in slow_ranks(own, seconds, self._settings.factor):
            self._log.warning(
                "slow rank",
                rank=slow.rank,
                steps=f"{last - self._settings.every + 1}-{last}",
                own_seconds=round(slow.own, 3),
                others=round(slow.others, 3),
            )

    def _key(self, number: int, rank: int) -> str:
        return f"pace/{number}/{rank}"
