"""What a life leaves behind in its process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
from torch import nn
from torch.distributed import TCPStore
from torch.distributed.tensor import DTensor

from runner.checkpoint.layout import local_tensor
from runner.control.presence import Presence
from runner.recipe.recipe import Recipe
from runner.recovery.life import ProcessLife
from runner.recovery.ranks import RankFacts
from runner.recovery.start_watch import StartWatch
from runner.train.data.source import DataPreparation
from runner.train.loop import LoopParts
from runner.train.trainer import Trainer

TIMEOUT = timedelta(seconds=20)


class NoSaves:
    """A checkpointer that has nothing and keeps nothing."""

    def attach(self, life: Any, state: Any) -> None:
        weights = (tensor for name, tensor in state.tensors.items() if name.startswith("model."))
        self.bytes_of_weights = sum(local_tensor(tensor).nbytes for tensor in weights)

    def restore(self) -> tuple[int, str]:
        return 0, "fresh"

    def before_forward(self) -> float:
        return 0.0

    before_update = before_forward

    def after_update(self, *, force_save: bool = False) -> float:
        return 0.0


class Ledger:
    def record(self, event: Any, *, ago: float = 0.0) -> None: ...

    def sync(self) -> None: ...


class FaultInStep2:
    """As a fault that strikes while the model, its gradients and the optimiser's state are all there."""

    def during_step(self, step: int, rank: int) -> None:
        if step == 2:
            raise ValueError("boom")

    def loss(self, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        return loss


@pytest.fixture
def nothing_stays_frozen() -> Iterator[None]:
    """The trainer takes what it finds in its process out of garbage collections."""
    yield
    gc.unfreeze()


def memory_of_tensors() -> dict[int, int]:
    """Address and bytes of all memory that a tensor holds, as far as Python's garbage collector knows the tensor."""
    gc.collect()
    found = {}
    for tensor in gc.get_objects():
        if type(tensor) in (torch.Tensor, nn.Parameter, DTensor) and not tensor.is_meta:
            storage = local_tensor(tensor).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


@pytest.mark.usefixtures("nothing_stays_frozen")
def test_no_model_outlives_its_life_nor_do_moments_outlive_the_step_that_failed(
    make_recipe: Callable[..., Recipe],
) -> None:
    recipe, log = make_recipe({"training.global_batch_size": 2}), structlog.get_logger()
    unused: Any = None
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    connections: Any = SimpleNamespace(control=store, group=store)
    facts = RankFacts(
        rank=0, world_size=1, local_rank=0, local_world_size=1, group_rank=0, master_addr="127.0.0.1",
        master_port=store.port, agent_store=False, restart=0, under_ft_launcher=False,
    )  # fmt: skip
    life = ProcessLife(
        rank=0, world_size=1, facts=facts, attempt="a-0", in_process=False, connections=connections,
        group_timeout=TIMEOUT, ledger=unused, layer="inprocess", start_watch=StartWatch(),
        presence=Presence(None, rank=0, local_rank=0, restart=0), first_step=TIMEOUT, heartbeats=None,
    )  # fmt: skip
    saves: Any = NoSaves()
    parts = LoopParts(recipe, Ledger(), log, saves, FaultInStep2(), lambda: False)
    trainer = Trainer(parts, DataPreparation(recipe, TIMEOUT, log))
    before = memory_of_tensors().keys()

    def bytes_held() -> int:
        return sum(nbytes for place, nbytes in memory_of_tensors().items() if place not in before)

    def failed() -> ValueError:
        try:
            trainer(life)
        except ValueError as error:
            return error
        finally:
            life.leave()
        raise AssertionError("the fault did not fire")

    error = failed()
    weights = saves.bytes_of_weights
    assert weights > 2**16
    # Its traceback holds the frames of the step, and these the graph of the loss, which holds the weights.
    assert bytes_held() < 1.5 * weights, "gradients and moments are gone, three times as much"
    assert str(error) == "boom"
    del error
    assert bytes_held() < 0.1 * weights
