"""Streaming datasets: tokenised and packed while training, with a state that is kept in every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from runner.errors import InputError
from runner.recipe.dataset import FilesDataset, HubDataset
from runner.recipe.recipe import Recipe
from runner.train.data.batches import as_rows
from runner.train.data.text import load_rows, text_key
from runner.train.data.tokenizer import Tokenizer


class StreamingBatches:
    """Each rank reads its own part of the stream.

    The state is that of the `datasets` stream after the last whole document, plus the tokens left over from it.
    A stream cannot be split anew, so it resumes only at the world size that wrote the state.

    Args:
        recipe: the dataset (hub or files, `streaming: true`) and sizes.
        tokenizer: encodes the text.
        rank, world_size: which part of the stream is read.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, rank: int, world_size: int) -> None:
        if not isinstance(recipe.dataset, HubDataset | FilesDataset):
            raise TypeError("only hub and files datasets stream")
        self._dataset, self._tokenizer = recipe.dataset, tokenizer
        self._seed = recipe.training.seed
        self._rank, self._world = rank, world_size
        self._micro = recipe.training.micro_batch_size
        self._per_step = recipe.training.global_batch_size // world_size // self._micro
        self._length = recipe.dataset.sequence_length
        self._left = np.empty(0, dtype=np.int64)
        self._epoch = 0
        self._rows: Any = None
        self._texts: Iterator[dict[str, Any]] = iter(())

    def start(self, step: int, state: dict[str, Any]) -> None:
        """See `BatchSource.start`."""
        if state and state["world_size"] != self._world:
            raise InputError(
                f"dataset.streaming: the checkpoint's stream was split over {state['world_size']} ranks and cannot be "
                f"split over {self._world}; resume with {state['world_size']} ranks, or prepare the data "
                "(streaming: false), which resumes at any number"
            )
        from datasets.distributed import split_dataset_by_node

        rows, _ = load_rows(self._dataset)
        if self._dataset.shuffle:
            rows = rows.shuffle(seed=self._seed, buffer_size=10_000)  # type: ignore[attr-defined]
        self._rows = split_dataset_by_node(rows, rank=self._rank, world_size=self._world)
        self._epoch = state.get("epoch", 0)
        self._rows.set_epoch(self._epoch)
        self._left = np.asarray(state.get("left", []), dtype=np.int64)
        if state:
            self._rows.load_state_dict(state["rows"])
        self._texts = iter(self._rows)

    def micro_batches(self) -> Iterator[torch.Tensor]:
        """See `BatchSource.micro_batches`."""
        for _ in range(self._per_step):
            yield as_rows([self._sequence() for _ in range(self._micro)])

    def state(self) -> dict[str, Any]:
        """See `BatchSource.state`."""
        return {
            "world_size": self._world,
            "epoch": self._epoch,
            "rows": self._rows.state_dict(),
            "left": self._left.tolist(),
        }

    def close(self) -> None:
        """Forget the stream."""
        self._texts = iter(())

    def _sequence(self) -> np.ndarray:
        """The next sequence with its target: shape (sequence_length + 1,); its last token starts the next one."""
        empty_epochs = 0
        while len(self._left) <= self._length:
            row = next(self._texts, None)
            if row is None:
                empty_epochs += 1
                if empty_epochs > 1:
                    raise InputError(
                        f"dataset: the part of the stream that rank {self._rank} reads holds fewer than "
                        f"{self._length + 1} tokens; use more text or fewer ranks"
                    )
                self._epoch += 1
                self._rows.set_epoch(self._epoch)
                self._texts = iter(self._rows)
                continue
            empty_epochs = 0
            ids = self._tokenizer.encode([row[text_key(self._dataset)]])[0]
            self._left = np.concatenate([self._left, ids, [self._tokenizer.eos]])
        sequence = self._left[: self._length + 1]
        self._left = self._left[self._length :]
        return sequence
