"""Tokenizers: any of transformers, or one token a byte for runs without a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.train.hub import hub_errors

BYTES = "bytes"


class Tokenizer(Protocol):
    """What packing needs of a tokenizer.

    Attributes:
        name: identifies the tokenizer in the fingerprint of prepared data.
        vocab_size: number of token ids, special ones included.
        eos: id of the end-of-text token that ends each document.
    """

    name: str
    vocab_size: int
    eos: int

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, without special tokens; int64 arrays of any length."""


class ByteTokenizer:
    """UTF-8 bytes as tokens 0-255, and 256 for end of text."""

    name = BYTES
    vocab_size = 257
    eos = 256

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Tokenizer.encode`."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64) for text in texts]


class HubTokenizer:
    """A tokenizer of transformers.

    Raises:
        InputError: it cannot be found or has no end-of-text token.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        with hub_errors("tokenizer", name):
            from transformers import AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, revision=revision)
        if self._tokenizer.eos_token_id is None:
            raise InputError(
                f"dataset.tokenizer: {name} has no end-of-text token, so documents cannot be told apart; "
                "choose a tokenizer that has one"
            )
        self.name = f"{name}@{revision or 'main'}"
        self.vocab_size = len(self._tokenizer)
        self.eos = int(self._tokenizer.eos_token_id)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Tokenizer.encode`."""
        if not texts:
            return []
        ids = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return [np.asarray(row, dtype=np.int64) for row in ids["input_ids"]]


def tokenizer_name(recipe: Recipe) -> str:
    """The tokenizer a recipe uses: its own word, else bytes for the embedded text, else the model's."""
    if recipe.dataset.tokenizer is not None:
        return recipe.dataset.tokenizer
    if recipe.dataset.source == "embedded" or recipe.model.name is None:
        return BYTES
    return recipe.model.name


def load_tokenizer(recipe: Recipe) -> Tokenizer:
    """The recipe's tokenizer.

    Raises:
        InputError: it cannot be found.
    """
    name = tokenizer_name(recipe)
    if name == BYTES:
        return ByteTokenizer()
    return HubTokenizer(name, recipe.model.revision if name == recipe.model.name else None)
