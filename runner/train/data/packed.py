"""Packed tokens: every document once, joined by end-of-text, as one array on disk that all ranks read.

A sequence of length L uses L + 1 neighbouring tokens (input and shifted target share them), so every token but
the first is predicted once and nothing is padded.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.system.durable import sync_folder
from runner.train.data.cache import CacheReader, CacheWriter, check_prepared, check_vacant, is_prepared
from runner.train.data.text import documents
from runner.train.data.tokenizer import Tokenizer, tokenizer_name

_BATCH = 256


def fingerprint(recipe: Recipe) -> str:
    """Identifies prepared data: everything that decides which tokens it holds (not the sequence length)."""
    what = recipe.dataset.model_dump(
        mode="json", exclude={"sequence_length", "shuffle", "workers", "worker_timeout"}
    )
    what["tokenizer"] = tokenizer_name(recipe)
    what["revision"] = recipe.model.revision if what["tokenizer"] == recipe.model.name else None
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def packed_folder(recipe: Recipe) -> Path:
    """Where the packed tokens of a recipe lie."""
    return recipe.run_folder / "data" / fingerprint(recipe)


def prepare(recipe: Recipe, tokenizer: Tokenizer) -> Path:
    """Tokenise and pack the recipe's dataset unless that is done already; returns the folder. Atomic.

    Raises:
        InputError: the dataset cannot be read or holds no text; what was prepared before is damaged.
    """
    folder = packed_folder(recipe)
    if is_prepared(folder):
        check_prepared(folder)
        return folder
    check_vacant(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: the pod before this one may have been killed in here, and its process had the same number.
    partial = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(8)}")
    partial.mkdir()
    try:
        with contextlib.closing(CacheWriter(partial, token_type(tokenizer))) as writer:
            docs = 0
            for ids in _encoded(documents(recipe.dataset), tokenizer):
                writer.write(ids)
                docs += 1
            if writer.tokens < 2:
                raise InputError(f"dataset: {recipe.dataset.source} holds no text ({docs} documents)")
            writer.finish(docs, tokenizer.name)
        try:
            partial.rename(folder)
        except OSError:
            if not is_prepared(folder):  # somebody else finished first: theirs is the same
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for left in folder.parent.glob(f"{folder.name}.partial-*"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)
    return folder


def token_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The smallest type on disk for a tokenizer's ids."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    stream = iter(texts)
    while batch := list(itertools.islice(stream, _BATCH)):
        for ids in tokenizer.encode(batch):
            yield np.append(ids, tokenizer.eos)


class PackedTokens:
    """Packed tokens as sequences.

    Args:
        folder: written by `prepare`.
        sequence_length: tokens a sequence.

    Raises:
        DamagedCacheError: they are not what was written.
    """

    def __init__(self, folder: Path, sequence_length: int) -> None:
        self._cache = CacheReader(folder)
        self.sequence_length = sequence_length
        self.documents = self._cache.index.documents
        self.tokens = self._cache.index.tokens
        self.has_checksums = self._cache.has_checksums

    def __len__(self) -> int:
        return (self.tokens - 1) // self.sequence_length

    def __getitem__(self, index: int) -> np.ndarray:
        """Sequence `index` with its target: int64, shape (sequence_length + 1,).

        Raises:
            DamagedCacheError, UnreadableCacheError: as `CacheReader.read`.
        """
        begin = index * self.sequence_length
        return self._cache.read(begin, begin + self.sequence_length + 1).astype(np.int64)
