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

# What a run asks a hub for, each from a busy one and from one that has it not. The client's own waits are left out.
ASK = """
import json, time
time.sleep = lambda seconds: None
from runner.recipe.dataset import HubDataset
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

print(json.dumps({name: [
    outcome(HubTokenizer, f"{name}/it", None),
    outcome(model_config, ModelSection(name=f"{name}/it"), 10),
    outcome(_safetensors_files, f"{name}/it", None),
    outcome(load_rows, HubDataset(source="hub", name=f"{name}/it")),
] for name in ("busy", "other")}))
"""


def test_what_a_busy_hub_does_not_give_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    with local_hub({}) as (endpoint, _):
        surroundings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", ASK], env=os.environ | surroundings, cwd=tmp_path,
            capture_output=True, text=True, timeout=200, check=True,
        )  # fmt: skip
    found = json.loads(done.stdout)
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
