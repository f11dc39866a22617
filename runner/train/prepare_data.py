"""`nvrx-data RECIPE`: fetch, tokenise and pack a recipe's data once, before any GPU is held.

The result is what a run would make itself at its start, in the same place, under the same fingerprint; a run finds it
and asks no hub. One process fetches, and gives a hub that is busy (429) time. Work is kept: after an interruption the
same command goes on after the last documents that reached the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runner.arguments import Parser, a_path, working_folder
from runner.errors import ExitCode, InputError, RunError, no_room, storage_error
from runner.streams import complain, interrupted, write_out
from runner.strictjson import parse
from runner.train.hub import hub_errors, with_backoff

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe
    from runner.train.data.cache import CacheIndex
    from runner.train.data.tokenizer import Tokenizer

_BATCH = 256  # documents that are tokenised at once
_KEEP_EVERY = 16  # batches between two points that an interrupted run goes on from


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `nvrx-data`; returns the exit code."""
    parser = Parser(
        "nvrx-data",
        "Fetch, tokenise and pack a recipe's data once, before the run.",
        "Exit codes: 0 done, 2 bad recipe or arguments; docs/exit-codes.md lists all.",
    )
    parser.add_argument("recipe", type=a_path, metavar="RECIPE", help="YAML recipe")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="override a setting; may be repeated")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="tracebacks")
    args = parser.parse_args(argv)
    try:
        from runner.recipe.installed import require_training
        from runner.recipe.load import load_recipe
        from runner.recipe.resolve import resolve

        recipe = resolve(load_recipe(args.recipe, args.overrides).recipe, cwd=working_folder())
        require_training()
        return _prepare(recipe)
    except RunError as error:
        if args.verbose:
            raise
        complain(f"nvrx-data: {error}")
        return int(error.exit_code)
    except OSError as error:
        if args.verbose:
            raise
        failure = storage_error(error)
        complain(f"nvrx-data: {failure}")
        return int(failure.exit_code)
    except KeyboardInterrupt:  # what is on the disk is kept: the same command goes on after it
        return interrupted("nvrx-data")


def _make_room(folder: Path) -> None:
    """The run's folder, before anything is fetched.

    Raises:
        InputError: it cannot be made.
    """
    try:
        (folder / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if no_room(error):
            raise
        raise InputError(
            f"output.folder: {error.filename or folder} cannot be used: {error.strerror}; "
            "name a folder that can be written"
        ) from error


def _prepare(recipe: Recipe) -> int:
    from runner.train.data.cache import UnreadableCacheError
    from runner.train.data.packed import packed_folder
    from runner.train.data.text import is_streaming
    from runner.train.data.tokenizer import load_tokenizer

    _make_room(recipe.run_folder)
    tokenizer = with_backoff(lambda: load_tokenizer(recipe))
    if recipe.model.name is not None and not Path(recipe.model.name).is_dir():
        with_backoff(lambda: _fetch_model(recipe))
    if is_streaming(recipe.dataset):
        write_out(
            "nvrx-data: the dataset is streamed while training: nothing to prepare but the model's files\n"
        )
        return int(ExitCode.DONE)
    folder = packed_folder(recipe)
    try:
        state = _prepared_already(folder)
    except UnreadableCacheError as error:
        remedy = "mend the storage, then run the same command"
        raise RunError(f"{error}; {remedy}", ExitCode.SAVE_FAILED) from error
    if state is not None:
        write_out(f"nvrx-data: {folder}: prepared already, {state}\n")
        return int(ExitCode.DONE)
    index = with_backoff(lambda: pack(recipe, tokenizer, folder))
    write_out(f"nvrx-data: {folder}: {index.tokens:,} tokens of {index.documents:,} documents\n")
    return int(ExitCode.DONE)


def _prepared_already(folder: Path) -> str | None:
    """How much of finished data was verified; None where there are none.

    Raises:
        DamagedCacheError, UnreadableCacheError: as `CacheReader` and `verify_all`.
    """
    from runner.train.data.cache import CacheReader, is_prepared

    if not is_prepared(folder):
        return None
    reader = CacheReader(folder)
    reader.verify_all()
    return "all of it verified" if reader.has_checksums else "by a version that kept no checksums"


def _fetch_model(recipe: Recipe) -> None:
    """Configuration and, where they are wanted, weights of the model into the hub's cache."""
    from huggingface_hub import snapshot_download

    name = str(recipe.model.name)
    patterns = ["*.json", "*.model", "*.txt", *(["*.safetensors"] if recipe.model.pretrained else [])]
    with hub_errors("model", name):
        snapshot_download(name, revision=recipe.model.revision, allow_patterns=patterns)


def pack(recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> CacheIndex:
    """Tokenise and pack into `folder`, going on where an earlier call stopped. Returns the index.

    The tokens so far lie in `<folder>.unfinished/`, with a note of how many documents they are; the folder gets its
    name when all are there.

    Raises:
        InputError: the dataset cannot be read or holds no text; the folder, or what an earlier call left, is damaged.
        RunError: another process is at it.
    """
    import numpy as np

    from runner.system.durable import sync_folder, write_durably
    from runner.train.data.cache import CacheWriter, check_vacant
    from runner.train.data.packed import token_type
    from runner.train.data.text import documents

    check_vacant(folder)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    dtype, note = token_type(tokenizer), unfinished / "progress.json"
    with _only_here(unfinished / "lock"):
        docs, kept = _noted(note, dtype.name)
        if docs:
            complain(f"nvrx-data: going on after {docs:,} documents")
        texts = iter(documents(recipe.dataset))
        for _ in itertools.islice(texts, docs):
            pass
        with (
            contextlib.closing(CacheWriter(unfinished, dtype, kept=kept)) as writer,
            _bar(recipe.dataset.max_documents) as report,
        ):
            for number in itertools.count(1):
                batch = list(itertools.islice(texts, _BATCH))
                for ids in tokenizer.encode(batch):
                    writer.write(np.append(ids, tokenizer.eos))
                docs += len(batch)
                report(docs, writer.tokens)
                if not batch:
                    break
                if number % _KEEP_EVERY == 0:
                    writer.flush()
                    so_far = {"documents": docs, "tokens": writer.tokens, "dtype": dtype.name}
                    write_durably(note, json.dumps(so_far))
            if writer.tokens < 2:
                raise InputError(f"dataset: {recipe.dataset.source} holds no text ({docs} documents)")
            index = writer.finish(docs, tokenizer.name)
        note.unlink(missing_ok=True)
        (unfinished / "lock").unlink()
        unfinished.rename(folder)
        sync_folder(folder.parent)
    return index


class _only_here:
    """Holds a lock file for the length of a block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{self._path.parent}: another nvrx-data prepares this data; wait for it"
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _noted(path: Path, dtype: str) -> tuple[int, int]:
    """Documents and tokens of an earlier call, where it wrote tokens of the same type.

    Raises:
        InputError: its note is damaged.
    """
    try:
        note = parse(path.read_bytes())
        documents, tokens, same = int(note["documents"]), int(note["tokens"]), note["dtype"] == dtype
    except FileNotFoundError:
        return 0, 0
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: is damaged ({type(error).__name__}: {error}); remove the folder {path.parent} "
            "and run nvrx-data again: it starts from the first document"
        ) from None
    return (documents, tokens) if same else (0, 0)


class _bar:
    """A progress bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._bar: Any = None
        self._next = time.monotonic() + 10

    def __enter__(self) -> Callable[[int, int], None]:
        if sys.stderr.isatty() and shutil.get_terminal_size().columns >= 40:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._task = self._bar.add_task("documents", total=self._total)
            self._bar.start()
        return self._report

    def _report(self, documents: int, tokens: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=documents, description=f"{tokens:,} tokens")
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + 10
            complain(f"nvrx-data: {documents:,} documents, {tokens:,} tokens")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


if __name__ == "__main__":
    sys.exit(main())
