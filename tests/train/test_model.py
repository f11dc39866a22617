"""Building, wrapping and filling models, with one rank; what several ranks add is in test_world_size.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from runner.errors import InputError
from runner.recipe.known_models import ENCODERS
from runner.recipe.recipe import Recipe
from runner.train.data.tokenizer import ByteTokenizer
from runner.train.decided import decided
from runner.train.model import model_config
from runner.train.setup import ModelFactory, Workload

MakeRecipe = Callable[..., Recipe]
CPU = torch.device("cpu")
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def filled(recipe: Recipe) -> Workload:
    factory = ModelFactory(recipe, ByteTokenizer())
    workload = factory.build(CPU, world_size=1)
    factory.fill(workload, CPU)
    return workload


def full(workload: Workload) -> dict[str, torch.Tensor]:
    return {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).clone()
        for name, t in workload.state.tensors.items()
    }


@pytest.mark.usefixtures("lone_rank")
def test_random_weights_follow_the_architectures_own_rules(make_recipe: MakeRecipe) -> None:
    """Against transformers' own initialisation of the same model: same spread, zeros and ones in the same places."""
    for architecture in (GPT2, make_recipe().model.architecture):
        recipe = make_recipe({"model.architecture": architecture})
        ours = full(filled(recipe))
        config = ModelFactory(recipe, ByteTokenizer()).config
        for name, theirs in AutoModelForCausalLM.from_config(config).named_parameters():
            mine = ours[f"model.{name}"]
            if theirs.std() == 0:
                assert torch.equal(mine, theirs), name
            else:
                assert mine.std() == pytest.approx(theirs.std().item(), rel=0.15), name
                assert mine.mean().abs() < 3 * mine.std() / mine.numel() ** 0.5 + 1e-3, name


@pytest.mark.usefixtures("lone_rank")
def test_weights_depend_on_the_seed_not_on_the_sharding_or_wrap_policy(make_recipe: MakeRecipe) -> None:
    wraps: list[dict[str, Any]] = [
        {"strategy": "fsdp", "wrap": "transformer_block"},
        {"strategy": "fsdp", "wrap": {"min_params": 1000}},
        {"strategy": "fsdp", "wrap": {"modules": ["GPT2MLP"]}},
        {"strategy": "ddp"},
    ]
    base = [full(filled(make_recipe({"model.architecture": GPT2, "sharding": wrap}))) for wrap in wraps]
    for other in base[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in base[0].items())
    reseeded = full(filled(make_recipe({"model.architecture": GPT2, "training.seed": 1})))
    assert not torch.equal(base[0]["model.transformer.wte.weight"], reseeded["model.transformer.wte.weight"])


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_tied_embeddings_stay_one_parameter(make_recipe: MakeRecipe, strategy: str) -> None:
    workload = filled(make_recipe({"model.architecture": GPT2, "sharding": {"strategy": strategy}}))
    assert workload.module.lm_head.weight is workload.module.transformer.wte.weight  # type: ignore[union-attr]
    assert "model.lm_head.weight" not in workload.state.tensors
    logits = workload.model(input_ids=torch.zeros((1, 4), dtype=torch.long)).logits
    logits.sum().backward()
    assert workload.module.lm_head.weight is workload.module.transformer.wte.weight  # type: ignore[union-attr]


@pytest.mark.usefixtures("lone_rank")
def test_a_module_is_not_wrapped_apart_from_what_it_shares_a_parameter_with(make_recipe: MakeRecipe) -> None:
    both = {"wrap": {"modules": ["Embedding", "GPT2Block"]}, "strategy": "fsdp"}
    workload = filled(make_recipe({"model.architecture": GPT2, "sharding": both}))
    wrapped = {name for name, module in workload.module.named_modules() if isinstance(module, FSDPModule)}
    assert wrapped == {"", "transformer.h.0", "transformer.h.1", "transformer.wpe"}
    lone = {"wrap": {"modules": ["Linear"]}, "strategy": "fsdp"}
    with pytest.raises(
        InputError, match=r"lm_head: each shares a parameter .* \(transformer\.wte\.weight and lm_head"
    ):
        filled(make_recipe({"model.architecture": GPT2, "sharding": lone}))


@pytest.mark.usefixtures("lone_rank")
def test_the_sharded_model_computes_what_transformers_computes(make_recipe: MakeRecipe) -> None:
    """Same weights, same logits: so rotary tables and other buffers survived the meta device."""
    workload = filled(make_recipe())
    config = ModelFactory(make_recipe(), ByteTokenizer()).config
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    plain.load_state_dict(
        {name.removeprefix("model."): t for name, t in full(workload).items() if "optim" not in name}
    )
    tokens = torch.arange(30).reshape(1, 30)
    torch.testing.assert_close(
        workload.model(input_ids=tokens).logits, plain(input_ids=tokens).logits, rtol=1e-5, atol=1e-6
    )


def test_a_forward_never_makes_the_host_wait_for_the_device(make_recipe: MakeRecipe) -> None:
    """On the meta device a look at a value raises: so does what would stall a GPU."""
    for shape in (GPT2, make_recipe().model.architecture):
        factory = ModelFactory(make_recipe({"model.architecture": shape}), ByteTokenizer())
        model = factory.skeleton.to("meta")
        model(input_ids=torch.zeros((2, 8), dtype=torch.long, device="meta"), use_cache=False)


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_published_weights_are_read_as_transformers_reads_them(
    make_recipe: MakeRecipe, tmp_path: Path, kind: str
) -> None:
    shape = GPT2 if kind == "gpt2" else make_recipe().model.architecture
    config = AutoConfig.for_model(**shape, vocab_size=300)
    original = AutoModelForCausalLM.from_config(config)
    bare = (
        original.transformer if kind == "gpt2" else original
    )  # GPT-2 is published without its head's prefix
    bare.save_pretrained(tmp_path / "published", max_shard_size="20KB")
    recipe = make_recipe({"model": {"name": str(tmp_path / "published")}, "dataset.tokenizer": "bytes"})
    assert recipe.model.pretrained
    ours = full(filled(recipe))
    for name, tensor in original.named_parameters():
        assert torch.equal(ours[f"model.{name}"], tensor), name


@pytest.mark.usefixtures("lone_rank")
def test_weights_that_lack_a_parameter_are_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "published"
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**make_recipe().model.architecture)
    ).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = make_recipe({"model": {"name": str(folder)}, "dataset.tokenizer": "bytes"})
    with pytest.raises(InputError, match=r"lack 1 parameters .* model\.norm\.weight"):
        filled(recipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sharding.wrap": {"modules": ["LlamaDecoderLayr"]}},
            r"no module of class LlamaDecoderLayr; it has .*LlamaDecod",
        ),
        (
            {"sharding.wrap": {"min_params": 10**9}},
            r"no module holds 1000000000 parameters \(the largest holds \d+\)",
        ),
        (
            {"model.architecture": {"model_type": "lama"}},
            r"knows no model_type 'lama'; did you mean `llama`\?$",
        ),
        (
            {"model.architecture": {"model_type": "llama", "hidden_sise": 8}},
            r"llama has no setting hidden_sise",
        ),
        (
            {"model.architecture": {"model_type": "roberta"}},
            r"roberta is an encoder, and sees the tokens that it is to predict unless is_decoder is true; set",
        ),
        (
            {"model.architecture": {"model_type": "rembert", "is_decoder": True, "num_hidden_layers": 1}},
            r"model.attention: sdpa is not there for RemBert models; use eager$",
        ),
        ({"model": {"name": "no-such/model"}}, r"model 'no-such/model' cannot be loaded"),
        (
            {"model": {"name": "/no/such/folder"}},
            r"^model '/no/such/folder' cannot be loaded: there is no such folder; correct it, or bring the folder",
        ),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_in_one_line(
    make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message) as caught:
        ModelFactory(make_recipe(changes), ByteTokenizer())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "setting", "value"),
    [
        (
            {"model_type": "llama", "rope_theta": 5e5},
            "rope_parameters",
            {"rope_theta": 5e5, "rope_type": "default"},
        ),
        ({"model_type": "gpt2", "hidden_size": 48, "num_attention_heads": 4}, "n_embd", 48),
    ],
)
def test_settings_under_the_names_of_published_configurations_are_taken(
    make_recipe: MakeRecipe, architecture: dict[str, Any], setting: str, value: object
) -> None:
    recipe = make_recipe({"model.architecture": architecture})
    assert getattr(model_config(recipe.model, 300), setting) == value


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type: gpt2, but .* is a llama model; leave `model_type` out"),
        ({"num_hidden_layrs": 1}, r"llama has no setting num_hidden_layrs; did you mean num_hidden_layers\?"),
    ],
)
def test_keys_that_a_named_model_does_not_have_are_refused(
    make_recipe: MakeRecipe, tmp_path: Path, architecture: dict[str, Any], message: str
) -> None:
    AutoConfig.for_model(**make_recipe().model.architecture).save_pretrained(tmp_path)
    changes = {"model": {"name": str(tmp_path), "architecture": architecture}, "dataset.tokenizer": "bytes"}
    with pytest.raises(InputError, match=message):
        ModelFactory(make_recipe(changes), ByteTokenizer())


@pytest.mark.usefixtures("lone_rank")
def test_more_ranks_than_a_matrix_has_rows_are_refused(make_recipe: MakeRecipe) -> None:
    with pytest.raises(InputError, match=r"1024 ranks cannot share matrices of \d+ rows"):
        ModelFactory(make_recipe(), ByteTokenizer()).build(CPU, world_size=1024)


def test_what_does_not_show_in_the_tensors_is_told_by_the_names_of_its_settings(
    make_recipe: MakeRecipe,
) -> None:
    def told(changes: dict[str, Any]) -> dict[str, Any]:
        recipe = make_recipe(changes)
        found = decided(recipe, model_config(recipe.model, 257))
        assert json.loads(json.dumps(found)) == found
        return found

    base = told({})
    for name, value in {
        "model.architecture.num_attention_heads": 1,
        "model.architecture.num_key_value_heads": 1,
        "model.architecture.rms_norm_eps": 1e-3,
        "training.seed": 5,
        "training.global_batch_size": 64,
        "dataset.sequence_length": 16,
        "dataset.max_documents": 3,
        "dataset.shuffle": False,
    }.items():
        other = told({name: value})
        assert other[name] == value != base[name]
    rope = {"rope_theta": 5.0, "rope_type": "default"}
    assert (
        told({"model.architecture.rope_parameters": rope})["model.architecture.rope_parameters.rope_theta"]
        == 5.0
    )
    ours = {"dataset.workers": 3, "training.optimizer.lr": 1e-3, "training.steps": 77, "checkpoint.every": 3}
    assert told(ours) == base


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("kind", ["bert", "roberta", "llama", "gpt2"])
def test_no_model_sees_the_tokens_that_it_is_to_predict(make_recipe: MakeRecipe, kind: str) -> None:
    architecture: dict[str, Any] = {"model_type": kind, "num_hidden_layers": 2, "num_attention_heads": 2}
    architecture |= {"n_embd": 32} if kind == "gpt2" else {"hidden_size": 32, "intermediate_size": 64}
    if kind in ENCODERS:
        architecture["is_decoder"] = True
    model = filled(make_recipe({"model.architecture": architecture})).module.eval()
    tokens = torch.arange(16)[None] + 40
    later = tokens.clone()
    later[0, -1] += 9
    with torch.no_grad():
        differs = model(input_ids=tokens).logits != model(input_ids=later).logits
    assert differs[0, -1].any() and not differs[0, :-1].any()
