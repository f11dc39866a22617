"""Kinds of models whose parameters are not all alike: frozen, given by the constructor alone, unused in some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.train.data.tokenizer import ByteTokenizer
from runner.train.optimizer import ShardOptimizer
from runner.train.setup import ModelFactory
from runner.train.sharding import check_shardable

MakeRecipe = Callable[..., Recipe]
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
EAGER_DDP: dict[str, Any] = {"model.attention": "eager", "sharding": {"strategy": "ddp"}}
XGLM: dict[str, Any] = {
    "model_type": "xglm", "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "layerdrop": 0.4,
    "max_position_embeddings": 64,
}  # fmt: skip


def factory_of(make_recipe: MakeRecipe, kind: str, **changes: Any) -> ModelFactory:
    own = changes.pop("architecture", SMALL)
    recipe = make_recipe({"model.architecture": {**own, "model_type": kind}, **changes})
    return ModelFactory(recipe, ByteTokenizer())


@pytest.mark.usefixtures("lone_rank")
def test_a_frozen_parameter_is_frozen_in_every_life_of_a_process(make_recipe: MakeRecipe) -> None:
    architecture = {**SMALL, "is_decoder": True, "embedding_size": 32}
    factory = factory_of(make_recipe, "roformer", architecture=architecture, **EAGER_DDP)
    seen = []
    for _ in range(2):
        workload = factory.build(CPU, world_size=1)
        factory.fill(workload, CPU)
        frozen = {name for name, p in workload.module.named_parameters() if not p.requires_grad}
        positions = workload.state.tensors["model.roformer.encoder.embed_positions.weight"].clone()
        seen.append((frozen, workload.state.tensors.keys(), positions))
    assert seen[0][0] == {"roformer.encoder.embed_positions.weight"}
    assert seen[0][:2] == seen[1][:2]
    assert torch.equal(seen[0][2], seen[1][2])


@pytest.mark.usefixtures("lone_rank")
def test_what_only_the_constructor_says_is_what_a_parameter_begins_with(make_recipe: MakeRecipe) -> None:
    factory = factory_of(make_recipe, "apertus")
    workload = factory.build(CPU, world_size=1)
    factory.fill(workload, CPU)
    for name, theirs in AutoModelForCausalLM.from_config(factory.config).named_parameters():
        if "act_fn" in name:
            assert torch.equal(workload.module.get_parameter(name), theirs), name


@pytest.mark.usefixtures("lone_rank")
def test_a_parameter_whose_beginning_nobody_says_is_refused(make_recipe: MakeRecipe) -> None:
    shape = {"n_embd": 96, "n_layer": 1, "n_head": 4, "n_positions": 64}
    factory = factory_of(make_recipe, "openai-gpt", architecture=shape, **EAGER_DDP)
    with pytest.raises(InputError, match=r"does not say what transformer\.h\.0\.\S+ begins with"):
        factory.fill(factory.build(CPU, world_size=1), CPU)


def test_a_step_counts_for_a_parameter_that_it_does_not_use(make_recipe: MakeRecipe) -> None:
    """As with dropped layers. A run that is restored after step 2 has nothing but the number of steps to go on from."""

    def train(first: int, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model = nn.ModuleDict({"always": nn.Linear(3, 3), "rarely": nn.Linear(3, 3)})
        optimizer = ShardOptimizer(model, make_recipe().training, CPU)
        held = {
            **model.state_dict(),
            **{f"{k}/{m}": t for k, v in optimizer.moments.items() for m, t in v.items()},
        }
        for name, tensor in held.items():
            tensor.copy_(state.get(name, torch.zeros_like(tensor)))
        optimizer.set_step(first - 1)
        for step in range(first, 5):
            x = torch.full((1, 3), float(step))
            y = model["always"](x) + (model["rarely"](x) if step % 2 else 0.0)
            (y - 1).square().sum().backward()
            optimizer.clip()
            optimizer.update(0.1)
            after[step] = {name: tensor.clone() for name, tensor in held.items()}
        return after[4]

    after: dict[int, dict[str, torch.Tensor]] = {}
    whole = train(1, {})
    resumed = train(3, after[2])
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [({"strategy": "fsdp", "wrap": {"min_params": 2000}}, False), ({"strategy": "ddp"}, True)],
)
def test_layers_that_ranks_drop_each_for_itself_are_not_sharded(
    make_recipe: MakeRecipe, strategy: dict[str, Any], allowed: bool
) -> None:
    recipe = make_recipe({"model.architecture": XGLM, "model.attention": "eager", "sharding": strategy})
    skeleton = ModelFactory(recipe, ByteTokenizer()).skeleton
    if allowed:
        check_shardable(recipe, skeleton, 2)
    else:
        with pytest.raises(InputError, match=r"model\.architecture\.layerdrop: 0\.4: each rank draws"):
            check_shardable(recipe, skeleton, 2)


def test_a_matrix_of_fewer_rows_than_ranks_is_no_obstacle(make_recipe: MakeRecipe) -> None:
    """The gate of a shared expert has one row."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 2}
    factory = factory_of(make_recipe, "qwen2_moe", architecture={**SMALL, **moe})
    assert min(p.shape[0] for p in factory.skeleton.parameters() if p.ndim >= 2) == 1
    check_shardable(make_recipe(), factory.skeleton, 2)


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("kind", ["llama", "doge"])
def test_no_token_sees_a_later_one(make_recipe: MakeRecipe, kind: str) -> None:
    """Doge makes a mask of its own, and leaves it to transformers' mask to be causal."""
    factory = factory_of(make_recipe, kind)
    workload = factory.build(CPU, world_size=1)
    factory.fill(workload, CPU)
    workload.model.eval()
    one, other = torch.arange(24).reshape(1, 24), torch.arange(24).reshape(1, 24).clone()
    other[0, 12:] = 7
    with torch.no_grad():
        seen, changed = (workload.model(input_ids=tokens).logits for tokens in (one, other))
    torch.testing.assert_close(seen[0, :12], changed[0, :12])
    assert not torch.allclose(seen[0, 12:], changed[0, 12:])
