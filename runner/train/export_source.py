"""Which checkpoint `--export` reads, and what goes wrong with it, told as a run would tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.patience import may_pass, patiently, refused, unreadable, what_cannot_be_read
from runner.checkpoint.record import CommitRecord, Damaged, read_record, verify_sizes
from runner.errors import ExitCode, InputError, RunError
from runner.streams import complain

T = TypeVar("T")


def find(folder: CheckpointFolder, step: str) -> Path:
    """The folder of a checkpoint.

    Args:
        step: a step, or `latest`.

    Raises:
        InputError: there is no such.
        RunError: NO_LOADABLE_CHECKPOINT where none can be used; SAVE_FAILED where the operating system refuses.
    """
    try:
        committed = _patiently(folder.committed, folder.root, may_pass)
    except OSError as error:
        raise refused(error) from error
    known = [entry.step for entry in committed]
    if not known:
        raise InputError(f"there is no checkpoint in {folder.root}")
    if step == "latest":
        return _newest([entry.path for entry in reversed(committed)])
    if not step.isdigit() or int(step) not in known:
        raise InputError(
            f"--export {step}: no such checkpoint; there are: {', '.join(map(str, known))}, latest"
        )
    return folder.path(int(step))


def _newest(newest_first: list[Path]) -> Path:
    """The newest that has a commit record, as a run would go on from; what is passed over is said."""
    problems = []
    for path in newest_first:
        with reading(path):
            try:
                _patiently(partial(read_record, path), path)
            except Damaged as damage:
                problems.append(f"{path}: {damage}")
                continue
        for problem in problems:
            complain(f"nvrx-run: {problem}; not exported")
        return path
    raise RunError(
        f"--export latest: none can be used: {'; '.join(problems)}", ExitCode.NO_LOADABLE_CHECKPOINT
    )


def verified(source: Path, *, full: bool) -> CommitRecord:
    """The commit record of a checkpoint whose files have the sizes that it states, and with `full` the checksums.

    Raises:
        RunError: NO_LOADABLE_CHECKPOINT where not; SAVE_FAILED where the operating system does not give it.
    """
    from runner.checkpoint.writer import checksum

    with reading(source):
        record = _patiently(lambda: read_record(source), source)
        _patiently(lambda: verify_sizes(source, record), source)
        for file in record.files:
            path = source / file["name"]
            if full and _patiently(partial(checksum, path), path) != file["xxh3_128"]:
                raise Damaged(f"{file['name']} does not match its checksum")
    return record


@contextmanager
def reading(source: Path) -> Iterator[None]:
    """What goes wrong with a checkpoint that is read, as a run would end with it."""
    try:
        yield
    except Damaged as damage:
        raise RunError(
            f"{source}: {damage}; export another step", ExitCode.NO_LOADABLE_CHECKPOINT
        ) from damage
    except OSError as error:
        raise unreadable([what_cannot_be_read(error)]) from error


def _patiently(
    attempt: Callable[[], T], path: Path, again: Callable[[OSError], bool] = lambda error: True
) -> T:
    return patiently(attempt, path, time.sleep, lambda error: None, again)
