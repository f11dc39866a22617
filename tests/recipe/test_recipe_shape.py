"""Sizes of models: parameters against published counts and against transformers; memory against a measured run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recipelab import ROOT, SMALL, check_text

from runner.recipe.checks.model import _MODULES
from runner.recipe.estimate import GIB, device_memory, staging_buffers, staging_bytes, write_seconds
from runner.recipe.facts import Facts
from runner.recipe.known_models import KNOWN_MODELS
from runner.recipe.load import load_recipe
from runner.recipe.shape import ShapeError, model_shape, shape_of_config

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "EleutherAI/pythia-70m": 70_426_624,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-xl": 1_557_611_200,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_model_has_its_published_parameters(name: str) -> None:
    shape = shape_of_config(KNOWN_MODELS[name])
    assert shape is not None
    assert shape.parameters == PUBLISHED[name]


def test_every_known_model_has_a_shape() -> None:
    assert all(shape_of_config(config) is not None for config in KNOWN_MODELS.values())


_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 70,
}
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", **_SMALL},
    {"model_type": "llama", **_SMALL, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **_SMALL, "head_dim": 16, "tie_word_embeddings": True},
    {"model_type": "mistral", **_SMALL, "num_key_value_heads": 2},
    {"model_type": "mixtral", **_SMALL, "num_key_value_heads": 2, "num_local_experts": 4},
    {"model_type": "qwen2", **_SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
    {"model_type": "qwen3", **_SMALL, "num_key_value_heads": 2, "head_dim": 16},
    {"model_type": "phi3", **_SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
    {"model_type": "gemma", **_SMALL, "num_key_value_heads": 2, "head_dim": 8},
    {"model_type": "gpt_neox", **_SMALL},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 70, "n_positions": 50},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 70, "n_inner": 100},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config['model_type']}-{len(config)}")
def test_parameters_and_modules_are_those_that_transformers_builds(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    shape = shape_of_config(config)
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in built.parameters())
    if config["model_type"] != "mixtral" or transformers.__version__.startswith("5."):
        assert shape.tensors == len(list(built.parameters()))
    if config["model_type"] in _MODULES:
        classes = {type(module).__name__ for module in built.modules()} - {"ModuleList", "Dropout"}
        classes -= {name for name in classes if name.endswith(("Activation", "GELU", "SiLU"))}
        assert classes <= set(_MODULES[config["model_type"]])
        assert _MODULES[config["model_type"]][0] in classes


@pytest.mark.parametrize(
    ("change", "key"),
    [({"hidden_size": 0}, "hidden_size"), ({"hidden_size": -4}, "hidden_size"), ({"hidden_size": "64"}, "hidden_size"),
     ({"hidden_size": 2**50}, "hidden_size"), ({"hidden_size": True}, "hidden_size"),
     ({"hidden_size": [64]}, "hidden_size"),
     ({"num_attention_heads": 5}, "hidden_size"), ({"num_key_value_heads": 3}, "num_key_value_heads"),
     ({"tie_word_embeddings": 1}, "tie_word_embeddings"), ({"num_hidden_layers": 1.5}, "num_hidden_layers")],
)  # fmt: skip
def test_configuration_that_describes_no_model_blames_a_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ShapeError) as caught:
        shape_of_config({"model_type": "llama", **_SMALL, **change})
    assert caught.value.key == key


def test_unknown_architecture_is_not_guessed() -> None:
    assert shape_of_config({"model_type": "mamba", "hidden_size": 64}) is None
    assert shape_of_config({}) is None
    assert shape_of_config({"model_type": ["llama"]}) is None


def test_shape_comes_from_a_local_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **_SMALL}))
    text = SMALL.replace("architecture: {", f"name: {folder}\n  architecture: {{").replace(
        "model_type: llama, ", ""
    )
    loaded, problems = check_text(
        tmp_path, text, "model.architecture={num_hidden_layers: 5}", "dataset.tokenizer=x"
    )
    assert loaded is not None, problems
    shape = model_shape(loaded.recipe)
    assert shape is not None
    assert (shape.layers, shape.hidden) == (5, 32)


def test_a_named_model_of_another_type_is_told(tmp_path: Path) -> None:
    _, problems = check_text(tmp_path, SMALL.replace("architecture: {", "name: gpt2\n  architecture: {"))
    assert [(problem.code, problem.path) for problem in problems] == [
        ("R303", "model.architecture.model_type")
    ]
    assert "gpt2 is a gpt2 model, whose keys a llama model does not have" in problems[0].message


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", '{"model_type": "llama", "hidden_size": "x"}'])
def test_broken_local_configuration_is_an_error_of_the_recipe(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    _, problems = check_text(tmp_path, SMALL, f"model={{name: {folder}}}")
    assert [problem.code for problem in problems] == ["R303"]


def test_vocabulary_follows_the_tokenizer_where_the_architecture_leaves_it_out(tmp_path: Path) -> None:
    loaded, _ = check_text(tmp_path, SMALL)
    assert loaded is not None
    shape = model_shape(loaded.recipe)
    assert shape is not None
    assert shape.vocab == 257


def test_hub_model_that_is_not_in_the_table_has_no_shape_and_no_download(tmp_path: Path) -> None:
    loaded, problems = check_text(tmp_path, SMALL, "model={name: someone/some-model}")
    assert not problems
    assert loaded is not None
    assert model_shape(loaded.recipe) is None


def test_device_memory_matches_the_measured_peak() -> None:
    """torchtitan, Llama-3.1-8B, two H200, sequence 8192, micro batch 1, selective checkpointing: 100.8 GiB."""
    recipe = load_recipe(
        ROOT / "recipes" / "llama8b-async-none.yaml",
        ["cluster={nodes: 1, instance_type: p5e.48xlarge, processes_per_node: 2}",
         "model.activation_checkpointing=false", "training.global_batch_size=2", "checkpoint.storage_bandwidth=5GB"],
        {},
    ).recipe  # fmt: skip
    shape = model_shape(recipe)
    assert shape is not None
    memory = device_memory(recipe, shape, 2)
    selective = memory.total - memory.activations / 2
    assert 95 * GIB < selective < 110 * GIB
    assert memory.certain == 4 * shape.parameters * 4 // 2


def test_staging_and_write_time_follow_from_the_shards() -> None:
    recipe = load_recipe(ROOT / "recipes" / "llama8b-async-inprocess.yaml", (), {}).recipe
    shape = model_shape(recipe)
    assert shape is not None
    assert staging_buffers(recipe) == 3
    assert staging_bytes(recipe, shape) == pytest.approx(3 * 12 * shape.parameters / 2, rel=1e-6)
    assert write_seconds(recipe, shape) == pytest.approx(12 * shape.parameters / 400e6, rel=1e-3)


@pytest.mark.parametrize(
    ("strategy", "share"),
    [("{strategy: ddp}", 1), ("{strategy: fsdp}", 16), ("{strategy: hsdp, replicas: 4}", 4)],
)
def test_sharding_decides_the_share_of_a_rank(strategy: str, share: int) -> None:
    overrides = [
        f"sharding={strategy}",
        "model={name: gpt2, weights: random}",
        "dataset.sequence_length=1024",
    ]
    recipe = load_recipe(ROOT / "recipes" / "llama8b-async-none.yaml", overrides, {}).recipe
    memory = Facts(recipe).device_memory
    assert memory is not None
    assert memory.parameters == pytest.approx(124_439_808 * 4 / share, abs=4)
