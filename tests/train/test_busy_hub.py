"""A hub that is busy is no mistake in the recipe: whoever asks it in a run tries again, and ends with another code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch.distributed as dist
from hublab import local_hub

from runner.errors import BusyError, ExitCode, InputError
from runner.recipe.recipe import Recipe
from runner.train import hub
from runner.train.data import source
from runner.train.data.source import DataPreparation

# What a run asks for: in folders, then of a hub that is busy and of one that has none of it. Nobody waits in between.
ASK = """
import json, os, time, urllib.request
time.sleep = lambda seconds: None
from runner.recipe.dataset import FilesDataset, HubDataset, SavedDataset
from runner.recipe.model import ModelSection
from runner.train.data.text import load_rows
from runner.train.data.tokenizer import HubTokenizer
from runner.train.model import model_config
from runner.train.weights import _safetensors_files

def outcome(ask, *arguments):
    try:
        ask(*arguments)
    except Exception as error:
        return [type(error).__name__, str(error)]

HubTokenizer(os.path.abspath("local"), None)
model_config(ModelSection(name="./local"), 5)
[weights] = _safetensors_files(os.path.abspath("local"), None)
data = SavedDataset(source="saved", path="saved"), *(
    FilesDataset(source="files", format=kind, paths=[f"rows.{kind}"], streaming=streaming)
    for kind in ("json", "text", "parquet") for streaming in (False, True)
)
assert [len(list(load_rows(each)[0])) for each in data] == [2] + [2, 2, 1, 1, 2, 2]
urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/me/x/resolve/main/here")

print(json.dumps({name: [
    outcome(HubTokenizer, f"{name}/it", None),
    outcome(model_config, ModelSection(name=f"{name}/it"), 10),
    outcome(_safetensors_files, f"{name}/it", None),
    outcome(load_rows, HubDataset(source="hub", name=f"{name}/it")),
] for name in ("busy", "other")}))
"""


def make_folders(folder: Path) -> None:
    """A tokenizer, a model and its weights in `local`, and rows in four forms."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder / "local")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=5, num_key_value_heads=1, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "local")
    rows = Dataset.from_dict({"text": ["a", "b"]})
    rows.save_to_disk(str(folder / "saved"))
    rows.to_json(folder / "rows.json")
    rows.to_parquet(folder / "rows.parquet")
    (folder / "rows.text").write_text("a b")


def test_a_busy_hub_is_told_from_what_is_not_there_and_none_is_asked_for_what_is_here(tmp_path: Path) -> None:
    make_folders(tmp_path)
    with local_hub({"here": b""}) as (endpoint, seen):
        surroundings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", ASK], env=os.environ | surroundings, cwd=tmp_path,
            capture_output=True, text=True, timeout=200, check=True,
        )  # fmt: skip
    found = json.loads(done.stdout)
    assert seen[0] == "GET /me/x/resolve/main/here", "the first call is the one after all that lies here"
    for kind, message in found["busy"]:
        assert kind == BusyError.__name__, message
        assert "'busy/it' cannot be loaded: the hub answers 429; " in message
    for kind, message in found["other"]:
        assert kind == InputError.__name__, message


class Life:
    """One of two ranks that are there to prepare data."""

    world_size = 2

    def __init__(self, rank: int, store: dist.Store) -> None:
        self.rank, self.store = rank, store

    def starting(self, part: str, longest: timedelta) -> None: ...


def both_ranks(recipe: Recipe, timeout: timedelta, log: Any) -> list[Any]:
    """What `DataPreparation.batches` returns or raises on ranks 0 and 1."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        life: Any = Life(rank, store)
        try:
            return DataPreparation(recipe, timeout, log).batches(life)
        except Exception as error:  # noqa: BLE001 - handed to the test
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (0, 1)))


def busy(times: int) -> Callable[..., Path]:
    """`prepare`, from a hub that turns so many requests away."""
    prepare, left = source.prepare, [times]

    def asked(*arguments: Any) -> Path:
        if left[0]:
            left[0] -= 1
            raise BusyError("the hub answers 429")
        return prepare(*arguments)

    return asked


def test_rank_0_asks_a_busy_hub_again_and_the_others_wait(
    make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(source, "prepare", busy(3))
    said: list[str] = []
    log = SimpleNamespace(warning=lambda line: said.append(line))
    found = both_ranks(make_recipe(), timedelta(seconds=60), log)
    assert [type(each).__name__ for each in found] == ["PackedBatches"] * 2, found
    assert [line.partition(" of 8 ")[0] for line in said] == [
        f"the hub answers 429; attempt {n}" for n in (2, 3, 4)
    ]


def test_a_hub_that_stays_busy_is_the_same_error_on_all_ranks(
    make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also long before the ranks that wait lose their patience."""
    monkeypatch.setattr(source, "prepare", busy(100))
    for error in both_ranks(make_recipe(), timedelta(seconds=2), structlog.get_logger()):
        assert isinstance(error, BusyError), error
        assert error.exit_code == ExitCode.CRASHED
        assert str(error) == "the hub answers 429 (1 attempts)"
