"""Documents of each dataset source, as an iterator of texts."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.errors import InputError
from runner.recipe.dataset import DatasetSection, EmbeddedDataset, FilesDataset, HubDataset, SavedDataset
from runner.train.hub import hub_errors


def documents(dataset: DatasetSection) -> Iterator[str]:
    """Texts of the dataset in its own order, at most `max_documents` of them.

    Raises:
        InputError: the dataset, a file or the text column does not exist.
    """
    return itertools.islice(_all_documents(dataset), dataset.max_documents)


def is_streaming(dataset: DatasetSection) -> bool:
    """Whether the dataset is read while training."""
    return isinstance(dataset, HubDataset | FilesDataset) and dataset.streaming


def _all_documents(dataset: DatasetSection) -> Iterator[str]:
    if isinstance(dataset, EmbeddedDataset):
        from pydoc_data.topics import topics

        return iter(topics[name] for name in sorted(topics))
    rows, where = load_rows(dataset)
    return _column(rows, text_key(dataset), where)


def load_rows(dataset: HubDataset | SavedDataset | FilesDataset) -> tuple[Iterable[dict[str, Any]], str]:
    """The dataset as rows, and its name for messages. Local sources make no network call.

    Raises:
        InputError: it does not exist or cannot be read.
    """
    import datasets

    if isinstance(dataset, SavedDataset):
        if not Path(dataset.path).is_dir():
            raise InputError(
                f"dataset.path: {dataset.path} is not a folder; save one with datasets' save_to_disk"
            )
        with hub_errors("dataset", dataset.path):
            saved = datasets.load_from_disk(dataset.path)
        if not isinstance(saved, datasets.Dataset):
            splits = ", ".join(str(name) for name in saved)
            raise InputError(
                f"dataset.path: {dataset.path} holds several splits ({splits}); name the folder of one"
            )
        return saved, dataset.path
    if isinstance(dataset, FilesDataset):
        files = expand_files(dataset)
        with hub_errors("dataset", str(files[0])):
            extra = {"sample_by": "document"} if dataset.format == "text" else {}
            rows = datasets.load_dataset(
                dataset.format, data_files=files, split="train", streaming=dataset.streaming, **extra
            )
        return rows, ", ".join(dataset.paths)
    with hub_errors("dataset", dataset.name):
        rows = datasets.load_dataset(
            dataset.name,
            dataset.config,
            split=dataset.split,
            revision=dataset.revision,
            streaming=dataset.streaming,
        )
    return rows, dataset.name


def expand_files(dataset: FilesDataset) -> list[str]:
    """The files that the patterns name, sorted, each once.

    Raises:
        InputError: a pattern names no file.
    """
    found: set[str] = set()
    for pattern in dataset.paths:
        matches = [path for path in glob.glob(pattern, recursive=True) if Path(path).is_file()]  # noqa: PTH207
        if not matches:
            raise InputError(f"dataset.paths: {pattern} names no file; correct it, or bring the files there")
        found.update(matches)
    return sorted(found)


def text_key(dataset: DatasetSection) -> str:
    """Column of the text; files of format `text` always use `text`."""
    if isinstance(dataset, FilesDataset) and dataset.format == "text":
        return "text"
    return getattr(dataset, "text_column", "text")


def _column(rows: Iterable[dict[str, Any]], column: str, where: str) -> Iterator[str]:
    for index, row in enumerate(rows):
        if column not in row:
            raise InputError(
                f"dataset.text_column: {where} has no column {column!r}; it has {', '.join(sorted(row))}"
            )
        text = row[column]
        if not isinstance(text, str):
            raise InputError(
                f"dataset.text_column: row {index} of {where} holds {type(text).__name__}, not text"
            )
        yield text
