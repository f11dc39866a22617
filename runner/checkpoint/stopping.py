"""How all ranks end a life before the same update, after a save that failed."""

from __future__ import annotations

from runner.checkpoint.exchange import Exchange

_LEAD = 3  # updates


class StopTogether:
    """Agrees on the update before which a life ends.

    A rank that stopped alone would leave the others in a collective. So each says at which update it learnt of the
    failure; steps keep the ranks within two updates of each other, so that the last one's place plus three lies ahead
    of everybody who reads it.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._at: int | None = None

    def due(self, update: int) -> bool:
        """Whether this is the update to end before. Called ahead of every update once a failure is known here.

        Args:
            update: how many updates this life has come to, this one included.
        """
        if self._at is None:
            exchange = self._exchange
            mine = f"stop/{exchange.rank}"
            if exchange.peek(mine) is None:
                exchange.put(mine, update)
            places = [exchange.peek(f"stop/{rank}") for rank in range(exchange.world_size)]
            if None in places:
                return False
            self._at = max(places) + _LEAD
        return update >= self._at
