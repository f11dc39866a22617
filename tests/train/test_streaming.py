"""A stream that goes on from its state gives what it would have given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.train.data import streaming
from runner.train.data.streaming import StreamingBatches
from runner.train.data.tokenizer import ByteTokenizer

LENGTH = 32
FILES, ROWS = 3, 20
MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def recipe_of(make_recipe: MakeRecipe, tmp_path: Path) -> Callable[[bool], Recipe]:
    """A recipe that streams 60 numbered documents of 25 to 95 bytes from three files, in windows of seven."""
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        lines = [json.dumps({"text": f"<{n:02}>" + "x" * (20 + n * 37 % 71)}) for n in numbers]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))

    def make(shuffle: bool) -> Recipe:
        dataset = {
            "source": "files", "format": "json", "paths": [str(tmp_path / "*.jsonl")], "streaming": True,
            "sequence_length": LENGTH, "shuffle": shuffle,
        }  # fmt: skip
        return make_recipe(
            {"dataset": dataset, "training.global_batch_size": 4, "training.micro_batch_size": 1}
        )

    return make


def run(
    recipe: Recipe, rank: int, steps: int, after: int = 0, state: dict[str, Any] | None = None
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """The batches of some steps, and the state after each, as a checkpoint keeps it."""
    stream = StreamingBatches(recipe, ByteTokenizer(), rank, 2)
    stream.start(after, state or {})
    batches, states = [], []
    for _ in range(steps):
        batches.append(torch.stack(list(stream.micro_batches())))
        states.append(json.loads(json.dumps(stream.state())))
    stream.close()
    return batches, states


def documents(batches: list[torch.Tensor]) -> list[int]:
    """Numbers of the documents that begin in these batches, in order."""
    tokens = np.concatenate([b[:, :, :-1].flatten().numpy() for b in batches])
    text = bytes(t if t < 256 else 10 for t in tokens.tolist()).decode()
    return [int(piece[:2]) for piece in text.split("<")[1:] if piece[:2].isdigit()]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_goes_on_as_if_it_had_not_been_interrupted(
    recipe_of: Callable[[bool], Recipe], monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    monkeypatch.setattr(streaming, "WINDOW", 7)
    recipe = recipe_of(shuffle)
    for rank in range(2):
        whole, states = run(recipe, rank, 60)
        assert states[-1]["epoch"] >= 1
        for after in range(1, 56, 6):
            batches, _ = run(recipe, rank, 4, after, states[after - 1])
            assert all(map(torch.equal, batches, whole[after : after + 4])), (rank, after)


def test_a_shuffled_stream_gives_each_document_once_an_epoch_and_never_in_the_same_order(
    recipe_of: Callable[[bool], Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "WINDOW", 7)
    for shuffle in (True, False):
        seen = documents(run(recipe_of(shuffle), 0, 70)[0])
        n = len(set(seen))
        first, second = seen[:n], seen[n : 2 * n]
        assert n == FILES * ROWS / 2
        assert sorted(first) == sorted(second) == sorted(set(seen))
        assert (first != second and first != sorted(first)) if shuffle else (first == second == sorted(first))


def test_a_stream_that_an_earlier_version_shuffled_is_refused(
    recipe_of: Callable[[bool], Recipe],
) -> None:
    state = {"world_size": 2, "epoch": 0, "rows": {}, "left": []}
    with pytest.raises(InputError, match="shuffled by an earlier version of nvrx-run"):
        run(recipe_of(True), 0, 1, 1, state)
