"""The first collective of a life, made beside the restore of its state."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import torch
import torch.distributed as dist

from runner.recipe.recipe import Recipe
from runner.recipe.sharding import FsdpSharding

_POLL = 0.001


class Connection:
    """A connection that is being made. `wait` before the next collective: all ranks must see the same order."""

    def __init__(self, made: Future[None]) -> None:
        self._made = made

    def wait(self) -> None:
        """Wait until the ranks are connected; bounded by the process group's timeout.

        Raises:
            Exception: what connecting raised.
        """
        while not self._made.done():  # polled, so that a restart's exception can reach this thread
            time.sleep(_POLL)
        self._made.result()


def connect_early(recipe: Recipe, device: torch.device) -> Connection:
    """Start to connect the ranks of the default process group.

    NCCL connects in the first collective, which takes a few tenths of a second of nothing but waiting; in a restart
    that is a good part of the whole. Only where neither building nor restoring makes a collective of its own (fsdp
    over one mesh dimension), else the order of collectives would differ among the ranks.
    """
    made: Future[None] = Future()
    if device.type != "cuda" or not isinstance(recipe.sharding, FsdpSharding):
        made.set_result(None)
        return Connection(made)

    def connect() -> None:
        try:
            dist.all_reduce(torch.zeros(1, device=device))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            made.set_exception(error)
        else:
            made.set_result(None)

    # A daemon: NCCL may be stuck in it when the life is given up.
    threading.Thread(target=connect, daemon=True, name="connect").start()
    return Connection(made)
