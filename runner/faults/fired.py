"""Which injected faults have fired in the life of a run: one file each, written before the fault strikes.

Standard library only. The files lie in the run's folder, so that a respawned worker, another node and the next
command on the same folder all know.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.launch.durable import write_durably
from runner.recipe.fault_schedule import PlannedFault


class FiredFaults:
    """The record of a run's injected faults.

    Args:
        run_folder: the run's folder.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "faults" / "fired"

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:05d}.json"

    def has(self, index: int) -> bool:
        """Whether the fault has fired, on any node, in any life."""
        return self._path(index).exists()

    def add(self, fault: PlannedFault) -> None:
        """Record that the fault fires now.

        Raises:
            OSError: the record cannot be written; the fault must not fire then.
        """
        write_durably(self._path(fault.index), json.dumps(asdict(fault) | {"time": time.time()}))

    def all(self) -> list[dict[str, Any]]:
        """Everything that has fired, by index. Of a file that is damaged the index is known: its name says it."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            if path.stem.isdecimal():
                found.append(_fields(path) | {"index": int(path.stem)})
        return found


def _fields(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
