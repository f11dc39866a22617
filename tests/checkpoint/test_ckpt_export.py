"""Export: what a run saved, as a folder that transformers loads by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckpt_world import Rank, Recorder, World, manager
from torch.distributed.fsdp import fully_shard

from runner.errors import InputError
from runner.recipe.load import load_recipe
from runner.train import export as export_module
from runner.train.export import export
from runner.train.ports import TrainState

RECIPE = """
name: exported
model:
  architecture: {{model_type: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2,
    num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 32, vocab_size: 261}}
dataset: {{source: embedded, sequence_length: 32}}
sharding: {{strategy: fsdp}}
training: {{steps: 4, global_batch_size: 4}}
checkpoint: {{every: 4}}
recovery: {{layer: none}}
cluster: {{accelerator: cpu, processes_per_node: 2}}
output: {{folder: {folder}}}
"""


def save_llama(place: Rank, folder: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, vocab_size=261,
    )  # fmt: skip
    life = place.life()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    fully_shard(model)
    state = TrainState({f"model.{n}": p for n, p in model.named_parameters()}, frozenset(), step=4)
    checkpointer = manager(folder, Recorder(), "export", mode="sync")
    checkpointer.attach(life, state)
    checkpointer.finish()
    checkpointer.close()


def test_transformers_loads_what_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=tmp_path / "run"))
    recipe = load_recipe(path).recipe
    with pytest.raises(InputError, match="no checkpoint in"):
        export(recipe, "latest", None)
    with World(2) as world:
        world.run(save_llama, folder=str(tmp_path / "run" / "checkpoints"))
    monkeypatch.setattr(export_module, "_SHARD_BYTES", 20_000)
    assert export(recipe, "latest", str(tmp_path / "hf")) == 0
    assert "step 4 exported" in capsys.readouterr().out
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    source = tmp_path / "run" / "checkpoints" / "step-4"
    metadata = dcp.FileSystemReader(source).read_metadata()
    saved = {
        n: torch.empty(md.size, dtype=md.properties.dtype) for n, md in metadata.state_dict_metadata.items()
    }
    dcp.load(saved, checkpoint_id=str(source), no_dist=True)
    parameters = dict(model.named_parameters())
    assert {f"model.{name}" for name in parameters} == set(saved)
    for name, parameter in parameters.items():
        assert torch.equal(parameter.detach(), saved[f"model.{name}"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "Zwölf Boxkämpfer: 5 €\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text and tokenizer.eos_token_id == 256
    with pytest.raises(InputError, match="exists"):
        export(recipe, "4", str(tmp_path / "hf"))
    with pytest.raises(InputError, match="there are: 4, latest"):
        export(recipe, "5", None)
