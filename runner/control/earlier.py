"""What earlier launches of a run left in its folder: outcomes and fault records that say nothing about this one.

Told by name, not by age: the supervisor lists the files that are there before it starts its launcher. Nodes' clocks
differ, and the file system's may be a third. Standard library only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from runner.control.channel import Control
from runner.control.lastword import last_words
from runner.control.outcome import Outcome, outcome_folder, parse_outcome, read_outcome
from runner.errors import ExitCode
from runner.system.process import started_at

_LIST = "earlier.json"


def _files(run_folder: Path) -> list[Path]:
    folders = (outcome_folder(run_folder), run_folder / "faults")
    return [path for folder in folders if folder.is_dir() for path in folder.glob("[!.]*.json")]


def note_earlier_launches(run_folder: Path, control: Control) -> None:
    """Called by the supervisor before the launcher starts: what is there now is of earlier launches."""
    assert control.folder is not None
    (control.folder / _LIST).write_text(json.dumps([path.name for path in _files(run_folder)]))


def earlier_launches(run_folder: Path, control: Control) -> frozenset[str]:
    """Called by a worker: names of the files that earlier launches left.

    Where the launcher was started by hand nobody has listed them: those count that are older than it.
    """
    if control.folder is not None:
        return frozenset(json.loads((control.folder / _LIST).read_text()))
    since = started_at(os.getppid())
    return frozenset(path.name for path in _files(run_folder) if path.stat().st_mtime < since)


def decisive(run_folder: Path, control: Control, earlier: frozenset[str]) -> Outcome | None:
    """What this launch has ended with, on any node: the first decisive outcome, or that the run is done."""
    names = [path for path in outcome_folder(run_folder).glob("[!.]*.json") if path.name not in earlier]
    found = [read_outcome(path) for path in names]
    if control.folder is not None:  # the full disk that kept a worker from writing there
        found += map(parse_outcome, last_words(control.folder).values())
    return min(
        (one for one in found if one is not None and (one.decisive or one.exit_code == ExitCode.DONE)),
        key=lambda outcome: outcome.time,
        default=None,
    )
