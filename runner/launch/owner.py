"""Which run a folder of checkpoints belongs to: a lock while that run lives, and a note that outlasts it.

Two runs in one folder would resume from each other's steps, sweep each other's unfinished saves and delete by their own
retention. The folder of the run has a lock of its own; this is for the checkpoints, which may lie anywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from runner.errors import ExitCode, InputError, RunError, no_room
from runner.strictjson import parse
from runner.system.durable import write_durably
from runner.system.lock import Held, take_lock

NOTE = "owner.json"
LOCK = ".lock"
RUN = "run.json"  # in the run's folder


@dataclass(frozen=True)
class Owner:
    """A run, as the note in its checkpoint folder has it.

    Attributes:
        run_id: identity of the run, see `identity`.
        run_folder: absolute.
    """

    run_id: str
    run_folder: str


def identity(run_folder: Path, default: str) -> str:
    """What a run is known by wherever its folder is moved: the id that it had at its first start.

    Args:
        default: the id, where the run has not been started before (or its `run.json` is damaged).

    Raises:
        OSError: `run.json` cannot be read.
    """
    try:
        run = parse((run_folder / RUN).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return default
    known = (run.get("owner") or run.get("run_id")) if isinstance(run, dict) else None
    return known if isinstance(known, str) else default


def claim(checkpoints: Path, own: Owner, *, also: str, leads: bool, patience: float) -> BinaryIO | None:
    """Make sure that `checkpoints` is this run's; a folder without a note becomes so.

    Args:
        own: this run.
        also: another id of this run, the one that its folder's place gives.
        leads: whether this node locks the folder and writes the note. The others only read it.
        patience: seconds to wait for the lock, see `RunFolder`.

    Returns:
        The lock, where this node `leads`.

    Raises:
        InputError: it is another run's, or it cannot be used.
        RunError: another command uses it; the disk is full.
    """
    note = checkpoints / NOTE
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"checkpoint.folder: {checkpoints} is a file; name a folder")
    lock = None
    try:
        if leads:
            checkpoints.mkdir(parents=True, exist_ok=True)
            lock = take_lock(checkpoints / LOCK, patience, f", run folder {own.run_folder}")
        found = _read(note)
        if found is not None and found != own:
            _check(found, own, also, note)
        if leads and found != own:
            write_durably(note, json.dumps(asdict(own)))
    except Held as held:
        raise RunError(
            f"checkpoint.folder: {checkpoints} is in use by another nvrx-run ({held.holder}); "
            "give this run a folder of its own",
            ExitCode.CRASHED if patience else ExitCode.BAD_RECIPE,
        ) from None
    except OSError as error:
        _release(lock)
        if no_room(error):
            raise RunError(
                f"checkpoint.folder: {checkpoints}: {error.strerror}; make room, then run the same command",
                ExitCode.SAVE_FAILED,
            ) from error
        raise InputError(
            f"checkpoint.folder: {checkpoints} cannot be used: {error.strerror or error}; "
            "name a folder that can be written"
        ) from error
    except RunError:
        _release(lock)
        raise
    return lock


def _release(lock: BinaryIO | None) -> None:
    if lock is not None:
        lock.close()


def _read(note: Path) -> Owner | None:
    try:
        content = parse(note.read_bytes())
        run_id, run_folder = content["run_id"], content["run_folder"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        run_id = run_folder = None
    if not (isinstance(run_id, str) and isinstance(run_folder, str)):
        raise InputError(
            f"checkpoint.folder: {note} does not say whose checkpoints these are; name another folder, or remove "
            "that file to hand them over to this run"
        )
    return Owner(run_id, run_folder)


def _check(found: Owner, own: Owner, also: str, note: Path) -> None:
    """Refuse what is another run's. A run whose folder was moved, or that has another name now, is the same."""
    same = found.run_id in (own.run_id, also)
    if same and not _is_copy(found, own, note.parent):
        return
    this = f"a copy of it in {own.run_folder}" if same else f"run {own.run_id} in {own.run_folder}"
    raise InputError(
        f"checkpoint.folder: {note.parent} belongs to run {found.run_id} in {found.run_folder}, and this is {this}; "
        f"name another folder, or remove {note} to hand the checkpoints over to this run"
    )


def _is_copy(found: Owner, own: Owner, checkpoints: Path) -> bool:
    """Whether the run of that id lives on where the note says, and this one's folder is a copy without checkpoints."""
    there, here = Path(found.run_folder), Path(own.run_folder)
    if not (there / RUN).is_file() or there.samefile(here) or identity(there, "") != found.run_id:
        return False
    return not checkpoints.resolve().is_relative_to(here.resolve())
