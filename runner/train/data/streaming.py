"""Streaming datasets: tokenised and packed while training, with a state that is kept in every checkpoint.

Shuffled a window of documents at a time, each by a permutation of its own, besides the order of the files. `datasets`
would keep a buffer instead, and its state lacks what is in there: a run that goes on would leave those documents out.
"""

from __future__ import annotations

import itertools
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

WINDOW = 10_000
"""Documents that are shuffled among themselves."""


class StreamingBatches:
    """Each rank reads its own part of the stream.

    The state is that of the `datasets` stream after the last whole document (shuffled: where the window begins, and how
    many of its documents have been used), plus the tokens left over from it.
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
        self._all_rows: Any = None
        self._rows: Any = None
        self._texts: Iterator[str] = iter(())
        self._window_begins: dict[str, Any] | None = None  # None: with the epoch
        self._window, self._used = 0, 0  # number of the window in this epoch, and documents used of it

    def start(self, step: int, state: dict[str, Any]) -> None:
        """See `BatchSource.start`."""
        if state and state["world_size"] != self._world:
            raise InputError(
                f"dataset.streaming: the checkpoint's stream was split over {state['world_size']} ranks and cannot be "
                f"split over {self._world}; resume with {state['world_size']} ranks, or prepare the data "
                "(streaming: false), which resumes at any number"
            )
        if state and self._dataset.shuffle and "window" not in state:
            raise InputError(
                "dataset.streaming: the checkpoint's stream was shuffled by an earlier version of nvrx-run, which this "
                "one cannot go on with; go on with that version, or start over in another output.folder"
            )
        self._all_rows, _ = load_rows(self._dataset)
        self._left = np.asarray(state.get("left", []), dtype=np.int64)
        self._begin_epoch(state.get("epoch", 0))
        if state.get("rows"):
            self._rows.load_state_dict(state["rows"])
        if state and self._dataset.shuffle:
            self._window, self._used, self._window_begins = state["window"], state["used"], state["rows"]
        self._texts = self._shuffled(self._used) if self._dataset.shuffle else self._in_order()

    def micro_batches(self) -> Iterator[torch.Tensor]:
        """See `BatchSource.micro_batches`."""
        for _ in range(self._per_step):
            yield as_rows([self._sequence() for _ in range(self._micro)])

    def state(self) -> dict[str, Any]:
        """See `BatchSource.state`."""
        state = {"world_size": self._world, "epoch": self._epoch, "left": self._left.tolist()}
        if not self._dataset.shuffle:
            return state | {"rows": self._rows.state_dict()}
        return state | {"rows": self._window_begins, "window": self._window, "used": self._used}

    def abandon(self) -> None:
        """See `BatchSource.abandon`: there is no process that would have to end."""

    def close(self) -> None:
        """Forget the stream."""
        self._texts = iter(())

    def _sequence(self) -> np.ndarray:
        """The next sequence with its target: shape (sequence_length + 1,); its last token starts the next one."""
        empty_epochs = 0
        while len(self._left) <= self._length:
            text = next(self._texts, None)
            if text is None:
                empty_epochs += 1
                if empty_epochs > 1:
                    raise InputError(
                        f"dataset: the part of the stream that rank {self._rank} reads holds fewer than "
                        f"{self._length + 1} tokens; use more text or fewer ranks"
                    )
                self._begin_epoch(self._epoch + 1)
                self._texts = self._shuffled(0) if self._dataset.shuffle else self._in_order()
                continue
            empty_epochs = 0
            ids = self._tokenizer.encode([text])[0]
            self._left = np.concatenate([self._left, ids, [self._tokenizer.eos]])
        sequence = self._left[: self._length + 1]
        self._left = self._left[self._length :]
        return sequence

    def _begin_epoch(self, epoch: int) -> None:
        from datasets.distributed import split_dataset_by_node

        self._epoch, self._window, self._used, self._window_begins = epoch, 0, 0, None
        # A new object: an old one would begin again at the state that it was given.
        self._rows = split_dataset_by_node(self._all_rows, rank=self._rank, world_size=self._world)
        if (
            self._dataset.shuffle
        ):  # `datasets` draws the order of files from the number of an epoch that is not 0
            self._rows.set_epoch(1 + int(np.random.SeedSequence((self._seed, epoch)).generate_state(1)[0]))

    def _in_order(self) -> Iterator[str]:
        key = text_key(self._dataset)
        return (row[key] for row in self._rows)

    def _shuffled(self, used: int) -> Iterator[str]:
        """The texts of this epoch from window `self._window` on, without the first `used` of it."""
        texts = self._in_order()
        while window := list(itertools.islice(texts, WINDOW)):
            after = self._rows.state_dict()
            seed = (self._seed, self._epoch, self._rank, self._window)
            order = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).permutation(
                len(window)
            )
            for place in order[used:]:
                self._used = used = used + 1
                yield window[place]
            self._window, self._used, self._window_begins, used = self._window + 1, 0, after, 0
