"""Export: what a run saved, as a folder that transformers loads by itself."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from ckpt_world import Rank, Recorder, World, manager
from torch.distributed.fsdp import fully_shard

from runner.checkpoint import patience
from runner.cli import main
from runner.errors import ExitCode, InputError
from runner.recipe.load import load_recipe
from runner.train import export as export_module
from runner.train.building import MARKER, building
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a recipe and the checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("exported")
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder / "run"))
    with pytest.raises(InputError, match="no checkpoint in"):
        export(load_recipe(path).recipe, "latest", None)
    with World(2) as world:
        world.run(save_llama, folder=str(folder / "run" / "checkpoints"))
    return folder


def leave_building(target: Path, name: str, node: str | None = None) -> Path:
    """What an export that is under way, or was killed, has beside its target."""
    folder = target.with_name(f"{target.name}.{name}.partial")
    folder.mkdir()
    (folder / MARKER).write_text(os.uname().nodename if node is None else node)
    return folder


def write_tokenizer(folder: Path, **special: str) -> None:
    """A tokenizer of words with these special tokens; the number of each is its place, from 10 on."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"word{i}": i for i in range(10)} | {word: 10 + i for i, word in enumerate(special.values())}
    raw = Tokenizer(models.WordLevel(words, unk_token="word0"))
    PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(folder)


def special_tokens(folder: Path) -> dict[str, Any]:
    """Special tokens of an exported folder, as its three parts, each loaded by itself, agree on them."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids: dict[str, Any] = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config = getattr(AutoConfig.from_pretrained(folder), key)
        generation = getattr(GenerationConfig.from_pretrained(folder), key)
        assert config == generation == getattr(model.generation_config, key), key
        known = config if isinstance(config, list) else [config]
        assert getattr(tokenizer, key) in known, key
        ids[key] = config
    return ids


def test_transformers_loads_what_was_exported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = load_recipe(run / "recipe.yaml").recipe
    monkeypatch.setattr(export_module, "_SHARD_BYTES", 20_000)
    users = tmp_path / "hf.partial"
    others = leave_building(tmp_path / "hf", "0" * 16, node="another node")
    killed = leave_building(tmp_path / "hf", "1" * 16)
    users.mkdir()
    with leave_building(tmp_path / "hf", "2" * 16).joinpath(MARKER).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert export(recipe, "latest", str(tmp_path / "hf")) == 0
        assert not killed.exists()
        assert sorted(tmp_path.iterdir()) == [tmp_path / "hf", others, Path(held.name).parent, users]
    assert not (tmp_path / "hf" / MARKER).exists()
    assert "step 4 exported" in capsys.readouterr().out
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    source = run / "run" / "checkpoints" / "step-4"
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
    assert special_tokens(tmp_path / "hf") == {
        "bos_token_id": None, "eos_token_id": 256, "pad_token_id": None
    }  # fmt: skip
    with pytest.raises(InputError, match="exists"):
        export(recipe, "4", str(tmp_path / "hf"))
    with pytest.raises(InputError, match="there are: 4, latest"):
        export(recipe, "5", None)


def test_the_latest_is_the_newest_that_a_run_would_go_on_from(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    command = ["--export", str(tmp_path / "copy" / "recipe.yaml"), "latest", "-o"]
    settings = tmp_path / "copy" / "recipe.yaml"
    settings.write_text(settings.read_text().replace(str(run), str(tmp_path / "copy")))
    newer = tmp_path / "copy" / "run" / "checkpoints" / "step-9"
    shutil.copytree(newer.with_name("step-4"), newer)
    (newer / "commit.json").unlink()
    assert main([*command, str(tmp_path / "hf")]) == 0
    said = capsys.readouterr()
    assert "step 4 exported" in said.out
    assert re.fullmatch(r"nvrx-run: \S+/step-9: .*; not exported\n", said.err)
    (newer.with_name("step-4") / "commit.json").write_text("{}")
    assert main([*command, str(tmp_path / "none")]) == ExitCode.NO_LOADABLE_CHECKPOINT
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "step-9" in said.err and "step-4" in said.err


@pytest.mark.parametrize(
    ("call", "name", "error", "code"),
    [
        ("Path.iterdir", "checkpoints", errno.ENOTCONN, ExitCode.SAVE_FAILED),
        ("Path.iterdir", "checkpoints", errno.EACCES, ExitCode.BAD_RECIPE),  # as a run has it
        ("Path.read_bytes", "step-4/commit.json", errno.EIO, ExitCode.SAVE_FAILED),
        ("Path.stat", "step-4/__1_00.distcp", errno.ESTALE, ExitCode.SAVE_FAILED),
        ("Path.open", "step-4/__0_00.distcp", errno.EACCES, ExitCode.SAVE_FAILED),
        ("os.open", "step-4/__0_00.distcp", errno.EIO, ExitCode.SAVE_FAILED),  # while the weights are read
    ],
)
def test_what_the_system_cannot_read_is_told_in_one_line_with_the_code_of_a_run(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    name: str,
    error: int,
    code: ExitCode,
) -> None:
    monkeypatch.setattr(patience, "PAUSES", (0.01,) * 4)
    what = run / "run" / "checkpoints" / name.removeprefix("checkpoints")
    owner, method = {"Path": Path, "os": os}[call.partition(".")[0]], call.partition(".")[2]
    real, left = getattr(owner, method), [3]

    def refusing(path: Any, *arguments: Any, **options: Any) -> Any:
        if left[0] and str(path) == str(what):
            left[0] -= 1
            raise OSError(error, os.strerror(error), str(path))
        return real(path, *arguments, **options)

    command = ["--export", str(run / "recipe.yaml"), "4", "-o"]
    with monkeypatch.context() as unwell:
        unwell.setattr(owner, method, refusing)
        if code == ExitCode.SAVE_FAILED:  # three times are endured
            assert main([*command, str(tmp_path / "passes")]) == 0
            capsys.readouterr()
        left[0] = 1000
        assert main([*command, str(tmp_path / "hf")]) == code
    said = capsys.readouterr().err
    assert said.startswith("nvrx-run: checkpoint.folder: ") and said.count("\n") == 1
    assert f"{what}: {os.strerror(error)}" in said
    assert ("mend the storage" in said) == (code == ExitCode.SAVE_FAILED)
    assert not (tmp_path / "hf").exists() and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.architecture.hidden_size=16",
         "e.g. model.lm_head.weight is ['float32', [261, 24]] there and ['float32', [261, 16]]"),
        ("model.architecture.num_hidden_layers=1", "9 tensors differ"),
        ("model.param_dtype=bfloat16", "there and ['bfloat16', [261, 24]] in the recipe"),
    ],
)  # fmt: skip
def test_another_models_checkpoint_is_not_exported(run: Path, tmp_path: Path, change: str, said: str) -> None:
    recipe = load_recipe(run / "recipe.yaml", [change]).recipe
    with pytest.raises(InputError, match="step-4 was written for another model or optimiser") as refused:
        export(recipe, "4", str(tmp_path / "hf"))
    assert said in str(refused.value) and int(refused.value.exit_code) == 2
    assert not list(tmp_path.iterdir())


def test_of_two_exports_to_one_folder_the_first_that_is_done_has_it(tmp_path: Path) -> None:
    target = tmp_path / "hf"
    with pytest.raises(InputError, match=f"{target} exists"), building(target) as slower:
        (slower / "weights").write_text("slower")
        with building(target) as faster:
            (faster / "weights").write_text("faster")
        assert (slower / "weights").read_text() == "slower"
    assert [path.name for path in tmp_path.rglob("*")] == ["hf", "weights"]
    assert (target / "weights").read_text() == "faster"


def test_special_tokens_are_those_of_the_data(run: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "words", eos_token="<end>", pad_token="<pad>", bos_token="<begin>")
    recipe = load_recipe(run / "recipe.yaml", [f"dataset.tokenizer={tmp_path / 'words'}"]).recipe
    assert export(recipe, "4", str(tmp_path / "hf")) == 0
    assert special_tokens(tmp_path / "hf") == {"eos_token_id": 10, "pad_token_id": 11, "bos_token_id": 12}


def test_a_published_model_keeps_its_other_ends_of_text_and_its_manner_of_drawing(
    run: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, GenerationConfig

    published = tmp_path / "published"
    write_tokenizer(published, eos_token="<end of turn>", bos_token="<begin>")
    ends = {"eos_token_id": [10, 5], "bos_token_id": 11}
    shape = yaml.safe_load(RECIPE.format(folder="x"))["model"]["architecture"]
    AutoConfig.for_model(**shape, **ends).save_pretrained(published)
    GenerationConfig(**ends, do_sample=True, temperature=0.6).save_pretrained(published)
    changes = {
        "model.name": published, "model.architecture": "null", "model.weights": "random",
        "dataset.tokenizer": published,
    }  # fmt: skip
    recipe = load_recipe(run / "recipe.yaml", [f"{k}={v}" for k, v in changes.items()]).recipe
    assert export(recipe, "4", str(tmp_path / "hf")) == 0
    assert special_tokens(tmp_path / "hf") == {**ends, "pad_token_id": None}
    assert GenerationConfig.from_pretrained(tmp_path / "hf").temperature == 0.6
