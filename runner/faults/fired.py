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

from runner.recipe.fault_schedule import PlannedFault
from runner.strictjson import parse
from runner.system.durable import write_durably


class FiredFaults:
    """The record of a run's injected faults.

    Args:
        run_folder: the run's folder.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "faults" / "fired"

    def _path(self, fault: PlannedFault) -> Path:
        return self._folder / f"{fault.name or f'{fault.index:05d}'}.json"

    def has(self, fault: PlannedFault) -> bool:
        """Whether the fault has fired, on any node, in any life."""
        return self._path(fault).exists()

    def add(self, fault: PlannedFault) -> None:
        """Record that the fault fires now.

        Raises:
            OSError: the record cannot be written; the fault must not fire then.
        """
        write_durably(self._path(fault), json.dumps(asdict(fault) | {"time": time.time()}))

    def all(self) -> list[dict[str, Any]]:
        """All that have fired and can be read, by time: the fields of `PlannedFault`, and `time` (Unix, seconds)."""
        found = [_fields(path) for path in self._folder.glob("*.json")]
        return sorted(
            (fields for fields in found if isinstance(fields.get("time"), int | float)),
            key=lambda fields: fields["time"],
        )


def _fields(path: Path) -> dict[str, Any]:
    try:
        content = parse(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
