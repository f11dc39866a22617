"""`nvrx-run --checkpoints RECIPE`: what is in a run's checkpoint folder. No torch."""

from __future__ import annotations

import time
from pathlib import Path

from runner.checkpoint.folder import CheckpointFolder, Entry
from runner.checkpoint.patience import may_pass, refused
from runner.checkpoint.record import Damaged, read_record, verify_sizes
from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.recipe.units import format_size

_STATES = {"partial": "unfinished", "damaged": "set aside", "deleting": "being deleted"}
_HEADER = ("step", "state", "age", "size", "ranks", "verified", "path")


def list_checkpoints(recipe: Recipe) -> str:
    """A table of the checkpoints of a recipe's run, oldest first.

    `verified` says whether the commit record matches its checksum and every file has the size that it states;
    the files' own checksums are compared when a run loads them (`checkpoint.verify: full`).

    Raises:
        InputError: the folder cannot be read.
        RunError: SAVE_FAILED where that is the storage's fault.
    """
    root = recipe.checkpoint_folder
    try:
        entries = CheckpointFolder(root).entries()
    except OSError as error:
        if may_pass(error):
            raise refused(error) from error
        raise InputError(
            f"checkpoint.folder: {error.filename or root}: {error.strerror}; name a folder that can be read"
        ) from error
    if not entries:
        return f"no checkpoints in {root}"
    rows = [_row(entry) for entry in entries]
    widths = [max(len(row[i]) for row in [_HEADER, *rows]) for i in range(len(_HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [_HEADER, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(entry: Entry) -> tuple[str, ...]:
    state = _STATES.get(entry.state, entry.state)
    try:
        if not entry.path.is_dir():
            here = entry.path.lstat()
            size = format_size(here.st_size)
            return (str(entry.step), "-", _age(here.st_mtime), size, "-", "no: not a folder", str(entry.path))
    except OSError as error:
        return str(entry.step), state, "-", "-", "-", _why_not(error), str(entry.path)
    try:
        record = read_record(entry.path)
    except (Damaged, OSError) as error:
        verified = "-" if entry.state in ("partial", "deleting") else _why_not(error)
        state = _judged(state, error)
        age, size = _outside(entry.path)
        return str(entry.step), state, age, size, "-", verified, str(entry.path)
    try:
        verify_sizes(entry.path, record)
        verified = "sizes" if entry.state == "committed" else "-"
    except (Damaged, OSError) as error:
        verified, state = _why_not(error), _judged(state, error)
    return (
        str(entry.step), state, _age(record.created), format_size(record.nbytes), str(record.world_size), verified,
        str(entry.path),
    )  # fmt: skip


def _judged(state: str, error: Damaged | OSError) -> str:
    """What was committed and has lost a part since is `damaged`: a run that would load it sets it aside."""
    return "damaged" if state == "committed" and isinstance(error, Damaged) else state


def _why_not(error: Damaged | OSError) -> str:
    return f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else f"no: {error}"


def _outside(folder: Path) -> tuple[str, str]:
    """Age and size without a record, a dash each where the file system does not say."""
    try:
        age = _age(folder.stat().st_mtime)
        return age, format_size(sum(path.stat().st_size for path in folder.iterdir() if path.is_file()))
    except OSError:  # one strange entry does not hide the others
        return "-", "-"


def _age(since: float) -> str:
    seconds = max(0, int(time.time() - since))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
