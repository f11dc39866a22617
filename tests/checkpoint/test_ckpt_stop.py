"""A run that is asked to stop saves a whole step, of a model whose buffers change in forward too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ckpt_world import CPU, Rank, Recorder, World, named
from torch import nn

from runner.checkpoint.manager import build_checkpointer
from runner.checkpoint.shm import SHARED_MEMORY
from runner.errors import ExitCode, RunError
from runner.ledger.events import StepEnded
from runner.recipe.recipe import Recipe
from runner.train.loop import LoopParts, TrainingLoop
from runner.train.optimizer import ShardOptimizer
from runner.train.setup import Workload, _train_state

WORDS, LENGTH, MICRO_BATCHES = 11, 4, 2


class Counting(nn.Module):
    """A language model that counts its forward passes in a buffer, and answers according to the count."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WORDS)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        self.passes.add_(1.0)
        return SimpleNamespace(logits=self.table(input_ids) * (1 + self.passes / 10))


class Batches:
    """The same for every step."""

    def start(self, step: int, state: dict[str, Any]) -> None: ...

    def micro_batches(self) -> Iterator[torch.Tensor]:
        for index in range(MICRO_BATCHES):
            yield (torch.arange(2 * (LENGTH + 1)).reshape(2, LENGTH + 1) + index) % WORDS

    def state(self) -> dict[str, Any]:
        return {}

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Fault(Exception):
    pass


@pytest.fixture(autouse=True)
def no_snapshot_is_left() -> Iterator[None]:
    """A life that ends before its run does leaves its snapshots to the next one, which these tests do not have."""
    yield
    for path in SHARED_MEMORY.glob(f"nvrx-{named('stop')}-*"):
        path.unlink()


class FaultIn:
    """A fault in the middle of a step; None: none. Notes which steps are reported in the middle of each."""

    def __init__(self, step: int | None, recorder: Recorder) -> None:
        self.step, self.recorder = step, recorder
        self.reported: dict[int, list[int]] = {}

    def during_step(self, step: int, rank: int) -> None:
        self.reported[step] = [event.step for event in self.recorder.of(StepEnded)]
        if step == self.step:
            raise Fault

    def loss(self, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        return loss


def recipe(folder: str, steps: int, mode: str) -> Recipe:
    return Recipe.model_validate(
        {
            "name": named("stop"),
            "model": {"architecture": {"model_type": "llama", "hidden_size": 8}},
            "dataset": {"source": "embedded", "sequence_length": LENGTH},
            "sharding": {"strategy": "ddp"},
            "training": {
                "steps": steps,
                "global_batch_size": 2 * MICRO_BATCHES,
                "micro_batch_size": 2,
                "precision": "fp32",
            },
            "checkpoint": {"every": 100, "mode": mode},
            "recovery": {"layer": "none"},
            "cluster": {"accelerator": "cpu"},
            "output": {"folder": folder},
        }
    )


def one_life(
    place: Rank,
    folder: str,
    steps: int,
    ahead: bool,
    stop_in: int | None,
    fault_in: int | None = None,
    mode: str = "sync",
) -> dict[str, Any]:
    """Train until `steps`, or until the stop that is asked for in step `stop_in`.

    Args:
        ahead: let the host run a step ahead, as it does on a GPU.
        fault_in: a fault ends the life in this step.
    """
    wanted, recorder, life = recipe(folder, steps, mode), Recorder(), place.life()
    torch.manual_seed(3)
    model = Counting()
    optimizer = ShardOptimizer(model, wanted.training, CPU)
    workload = Workload(model, model, optimizer, _train_state(model, optimizer))
    checkpointer = build_checkpointer(wanted, recorder, recorder, device=CPU)
    checkpointer.attach(life, workload.state)
    began, _ = checkpointer.restore()
    log: Any = recorder
    calls = [began]

    def stop_requested() -> bool:
        calls[0] += 1  # asked once a step
        return calls[0] == stop_in

    faults = FaultIn(fault_in, recorder)
    parts = LoopParts(wanted, recorder, log, checkpointer, faults, stop_requested)
    loop = TrainingLoop(parts, life, workload, Batches(), CPU)
    loop._run_ahead = ahead
    code = 0
    try:
        loop.run()
    except RunError as error:
        code = int(error.exit_code)
    except Fault:
        life.abort()
    finally:
        checkpointer.close()
    return {
        "began": began,
        "code": code,
        "step": workload.state.step,
        "passes": model.passes.item(),
        "reported": faults.reported,
        "losses": {event.step: event.loss for event in recorder.of(StepEnded)},
        "table": model.table.weight.detach().clone(),
    }


@pytest.mark.parametrize(("ahead", "last", "mode"), [(False, 3, "sync"), (True, 4, "async")])
def test_a_stop_saves_what_an_undisturbed_run_has_after_that_step(
    one: World, tmp_path: Path, ahead: bool, last: int, mode: str
) -> None:
    common: dict[str, Any] = {"steps": 6, "ahead": ahead}
    (whole,) = one.run(one_life, folder=str(tmp_path / "whole"), stop_in=None, **common)
    (stopped,) = one.run(one_life, folder=str(tmp_path / "run"), stop_in=3, mode=mode, **common)
    assert (stopped["code"], stopped["step"]) == (ExitCode.PREEMPTED, last)
    assert stopped["passes"] == last * MICRO_BATCHES  # no forward has run since
    (resumed,) = one.run(one_life, folder=str(tmp_path / "run"), stop_in=None, **common)
    assert (resumed["began"], resumed["code"], resumed["step"]) == (last, 0, 6)
    assert resumed["passes"] == whole["passes"] == 6 * MICRO_BATCHES
    assert stopped["losses"] | resumed["losses"] == whole["losses"]
    assert torch.equal(resumed["table"], whole["table"])


@pytest.mark.parametrize(
    ("ahead", "reported"),
    [(False, {1: [], 2: [1], 3: [1, 2], 4: [1, 2, 3]}), (True, {1: [], 2: [1], 3: [1], 4: [1, 2]})],
)
def test_of_a_host_that_runs_ahead_the_first_step_is_reported_before_the_second(
    one: World, tmp_path: Path, ahead: bool, reported: dict[int, list[int]]
) -> None:
    """A recovery ends with it; the others are reported one step late."""
    (life,) = one.run(one_life, folder=str(tmp_path), steps=4, ahead=ahead, stop_in=None)
    assert life["reported"] == reported


def only_rank_0_is_asked(place: Rank, folder: str) -> tuple[int, int]:
    life = one_life(place, folder, steps=6, ahead=False, stop_in=3 if place.rank == 0 else None)
    return life["code"], life["step"]


def test_all_ranks_stop_after_the_same_step_whoever_was_asked(two: World, tmp_path: Path) -> None:
    """The request reaches the ranks of one node between two steps of some and within a step of others."""
    assert two.run(only_rank_0_is_asked, folder=str(tmp_path)) == [(ExitCode.PREEMPTED, 3)] * 2


def test_a_step_whose_loss_is_read_late_is_reported_by_the_end_of_its_life(
    one: World, tmp_path: Path
) -> None:
    """The next life may go on from the state after step 3; nobody else would ever say what its loss was."""
    (ended,) = one.run(one_life, folder=str(tmp_path), steps=6, ahead=True, stop_in=None, fault_in=4)
    assert sorted(ended["losses"]) == [1, 2, 3]


def test_a_stop_in_the_last_step_is_a_finished_run(one: World, tmp_path: Path) -> None:
    (done,) = one.run(one_life, folder=str(tmp_path), steps=3, ahead=False, stop_in=3)
    assert (done["code"], done["step"]) == (0, 3)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-3"]
