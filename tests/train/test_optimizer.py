"""AdamW and clipping on shards: the numbers of torch's own on the whole model."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from runner.recipe.recipe import Recipe
from runner.recipe.training import TrainingSection
from runner.train.data.tokenizer import ByteTokenizer
from runner.train.loss import next_token_loss
from runner.train.setup import ModelFactory, Workload

CPU = torch.device("cpu")
STEPS = 3
RATE = 0.01


def built(recipe: Recipe, world_size: int) -> Workload:
    factory = ModelFactory(recipe, ByteTokenizer())
    workload = factory.build(CPU, world_size)
    factory.fill(workload, CPU)
    return workload


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    tokens = batch(step, rank)
    return next_token_loss(model, tokens[:, :-1], tokens[:, 1:])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def plain(
    module: nn.Module, training: TrainingSection, world_size: int
) -> tuple[list[float], dict[str, Any]]:
    """The same steps by torch alone, on one rank that sees all batches: norms, and weights and moments at the end."""
    settings = training.optimizer
    named = dict(module.named_parameters())
    groups = [
        {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=RATE, betas=settings.betas, eps=settings.eps)
    norms = []
    for step in range(STEPS):
        torch.stack([loss_of(module, step, rank) for rank in range(world_size)]).mean().backward()
        assert training.clip_norm is not None
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), training.clip_norm).item())
        adamw.step()
        adamw.zero_grad()
    end = {f"model.{name}": p.detach() for name, p in named.items()}
    for name, p in named.items():
        end |= {f"optim.{moment}.{name}": adamw.state[p][moment] for moment in ("exp_avg", "exp_avg_sq")}
    return norms, end


def ours(workload: Workload, rank: int) -> tuple[list[float], dict[str, Any]]:
    norms = []
    for step in range(STEPS):
        loss_of(workload.model, step, rank).backward()
        norms.append(workload.optimizer.clip().item())
        workload.optimizer.update(RATE)
        assert all(p.grad is None for p in workload.module.parameters())
    return norms, {name: whole(tensor) for name, tensor in workload.state.tensors.items()}


def compare(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Moments are sums of gradients. Weights move by a moment over the root of another, however small both are."""
    for name, tensor in expected.items():
        loose = 0.02 * RATE if name.startswith("model.") else 1e-8
        torch.testing.assert_close(
            state[name], tensor, rtol=1e-4, atol=loose, msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_one_rank_makes_the_steps_that_torch_makes(
    make_recipe: Callable[..., Recipe], strategy: str, clip_norm: float
) -> None:
    recipe = make_recipe({"sharding": {"strategy": strategy}, "training.clip_norm": clip_norm})
    reference = copy.deepcopy(built(make_recipe({"sharding": {"strategy": "ddp"}}), 1).module)
    norms, state = ours(built(recipe, 1), 0)
    expected_norms, expected = plain(reference, recipe.training, 1)
    assert norms == pytest.approx(expected_norms, rel=1e-6)
    compare(state, expected)


SHARDINGS = (
    {
        "strategy": "fsdp",
        "wrap": "transformer_block",
    },  # 257 rows of the vocabulary: not all ranks hold as many
    {"strategy": "hsdp", "wrap": "transformer_block", "replicas": 2},
)
TIED_SHARDINGS = (
    {"strategy": "fsdp", "wrap": "transformer_block"},
    {"strategy": "fsdp", "wrap": {"min_params": 500}},  # the embeddings hold more
)
RANKS = 4


def one_of_many(rank: int, folder: str) -> None:
    """A rank of the test below: its norms and the whole state against those of torch alone."""
    from tiny_recipe import TINY, changed

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    changes: dict[str, Any] = {
        "model.architecture.attention_dropout": 0.0,
        "output.folder": folder,
        "training.clip_norm": 0.05,
    }
    for tied in (False, True):
        changes["model.architecture.tie_word_embeddings"] = tied
        alike = Recipe.model_validate(changed(TINY, changes | {"sharding": {"strategy": "ddp"}}))
        reference = copy.deepcopy(built(alike, RANKS).module)
        reference.tie_weights()  # type: ignore[operator]
        expected_norms, expected = plain(reference, alike.training, RANKS)
        for sharding in TIED_SHARDINGS if tied else SHARDINGS:
            recipe = Recipe.model_validate(changed(TINY, changes | {"sharding": sharding}))
            norms, state = ours(built(recipe, RANKS), rank)
            assert norms == pytest.approx(expected_norms, rel=1e-5), (tied, sharding)
            compare(state, expected)
    dist.destroy_process_group()


_RANKS = """
import os, sys
sys.path[:0] = {path!r}
from test_optimizer import RANKS, one_of_many
children = []
for rank in range(RANKS):
    pid = os.fork()
    if not pid:
        one_of_many(rank, {folder!r})
        os._exit(0)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""


def test_ranks_that_share_parameters_agree_on_the_norm_of_the_whole(tmp_path: Path) -> None:
    here = Path(__file__).parent
    code = _RANKS.format(path=[str(here), str(here.parent)], folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
