"""Which rank is slower than the others: compared every few steps, named in the log by rank 0 and kept in the ledger."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import structlog

from runner.ledger.events import PaceMeasured
from runner.ledger.stragglers import parts_of, slow_ranks
from runner.recipe.recovery import StragglerSettings
from runner.train.kernels import KernelTimes
from runner.train.ports import Ledger, Life
from runner.train.waiting import PeerWaits

_LATE = 3  # steps after which the kernels of the first have surely ended: the host runs one step ahead


class Pace:
    """Measures this rank through one life.

    The ranks tell each other through the life's store, one comparison late, so that nobody waits for it. On a GPU the
    first step of each comparison stands for its kernels in all of them.

    Args:
        waits: how long the host waits.
        kernels: how long the GPU computes, where that is measured.
    """

    def __init__(
        self,
        settings: StragglerSettings,
        waits: PeerWaits,
        kernels: KernelTimes | None,
        life: Life,
        ledger: Ledger,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._settings, self._waits, self._life = settings, waits, life
        self._ledger, self._log = ledger, log
        self._kernels = kernels if settings.every >= _LATE else None
        self._round = 0
        self._told: PaceMeasured | None = None  # of the round before
        self._first: int | None = None
        self._began = 0.0

    def step_begins(self, step: int) -> None:
        """`step` is about to be made; the one before is finished on the host."""
        if self._first is None:
            self._begin(step)
        elif step - self._first >= self._settings.every:
            self._compare(step - 1)
            self._begin(step)
        elif self._kernels is not None and step == self._first + 1:
            self._kernels.stop()

    def _begin(self, step: int) -> None:
        self._first, self._began = step, time.monotonic()
        self._waits.take()
        if self._kernels is not None:
            self._kernels.start()

    def _compare(self, last: int) -> None:
        assert self._first is not None
        seconds = time.monotonic() - self._began
        own = max(0.0, seconds - self._waits.take())
        computed = None
        if self._kernels is not None:
            computed = self._kernels.seconds() * (last - self._first + 1)
        pace = PaceMeasured(self._first, last, seconds, own, self._settings.factor, computed)
        self._ledger.record(pace)
        store, rank = self._life.store, self._life.rank
        if self._told is not None and rank == 0:
            keys = [self._key(self._round - 1, peer) for peer in range(self._life.world_size)]
            if store.check(keys):
                told = [json.loads(store.get(key)) for key in keys]
                self._name(
                    {
                        peer: replace(self._told, own=own, computed=computed)
                        for peer, (own, computed) in enumerate(told)
                    }
                )
        if self._round > 1:
            store.delete_key(self._key(self._round - 2, rank))
        store.set(self._key(self._round, rank), json.dumps([own, computed]))
        self._round, self._told = self._round + 1, pace

    def _name(self, paces: dict[int, PaceMeasured]) -> None:
        mine = paces[0]
        for part, own in parts_of(paces):
            for slow in slow_ranks(own, mine.seconds, mine.factor):
                self._log.warning(
                    "slow rank",
                    rank=slow.rank,
                    what=part,
                    steps=f"{mine.first}-{mine.last}",
                    own_seconds=round(slow.own, 3),
                    others=round(slow.others, 3),
                )

    def _key(self, number: int, rank: int) -> str:
        return f"pace/{number}/{rank}"
