"""The Hugging Face hub: one place that turns its failures into a sentence, and that knows when it is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import InputError


@contextmanager
def hub_errors(what: str, name: str) -> Iterator[None]:
    """Turn the hub's and the loaders' errors about `name` into one line.

    Raises:
        InputError: the thing does not exist, is not allowed, or cannot be reached.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
    ) as error:  # what transformers, datasets and their HTTP client raise
        if _is_path(name) and not Path(name).exists():  # what the hub's client says of it is about ids
            raise InputError(
                f"{what} {name!r} cannot be loaded: there is no such folder; correct it, or bring the folder there"
            ) from error
        reason = " ".join(str(error).split()).rstrip(".")
        if len(reason) > 300:
            reason = reason[:297] + "..."
        raise InputError(
            f"{what} {name!r} cannot be loaded: {reason or type(error).__name__}. "
            "Give a folder that exists, or an id that the hub knows and can be asked about (HF_TOKEN where it is gated)"
        ) from error


def _is_path(name: str) -> bool:
    """Whether a name can only be meant as a place in the file system: ids are `name` or `owner/name`."""
    return name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
