"""`dataset`: where the text comes from and how it becomes sequences of tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import Duration, NonNegativeInt, PositiveInt, Section, Words


class _Dataset(Section):
    sequence_length: Annotated[int, Field(ge=2)] = 2048
    """Tokens a sequence. Documents are joined with the end-of-text token and cut to this length, so that no
    padding enters the loss."""

    tokenizer: str | None = None
    """Hub id or folder of a tokenizer, or `bytes` (one token a byte; needs no download). Default: `bytes` for
    the embedded text, else the model's own."""

    shuffle: bool = True
    """Draw sequences in an order that depends on the seed and the epoch alone."""

    max_documents: PositiveInt | None = None
    """Use at most this many documents, from the start. Default: all."""

    workers: NonNegativeInt = 0
    """Processes a rank that load data ahead. 0 loads in the training process, which is enough for packed data."""

    worker_timeout: Duration = timedelta(seconds=60)
    """A data worker that gives nothing for so long counts as stuck: a fault, and the recovery layer's turn."""


class EmbeddedDataset(_Dataset):
    """English text that ships with Python itself (`pydoc_data.topics`): for trying things out."""

    source: Literal["embedded"]


class HubDataset(_Dataset):
    """A dataset on the Hugging Face hub."""

    source: Literal["hub"]
    name: str
    """Hub id, e.g. `allenai/c4`."""
    config: str | None = None
    """Configuration of the dataset, e.g. `en`."""
    split: str = "train"
    """Split, slices allowed: `train[:1%]`."""
    revision: str | None = None
    """Branch, tag or commit. Pin it for long runs."""
    text_column: str = "text"
    """Column that holds the text."""
    streaming: bool = False
    """Read while training instead of preparing everything first. Resumes only at the same world size."""


class SavedDataset(_Dataset):
    """A folder written by `datasets.Dataset.save_to_disk`."""

    source: Literal["saved"]
    path: str
    """The folder."""
    text_column: str = "text"
    """Column that holds the text, where the data is not tokenised yet."""


class FilesDataset(_Dataset):
    """Text, JSON lines or parquet files."""

    source: Literal["files"]
    format: Literal["text", "json", "parquet"]
    """`text` reads one document a file, `json` one a line, `parquet` one a row."""
    paths: Annotated[Words, Field(min_length=1)]
    """Files or glob patterns, relative to where the command is given."""
    text_column: str = "text"
    """Key or column that holds the text (json, parquet)."""
    streaming: bool = False
    """Read while training instead of preparing everything first. Resumes only at the same world size."""


DatasetSection = Annotated[
    EmbeddedDataset | HubDataset | SavedDataset | FilesDataset, Field(discriminator="source")
]
