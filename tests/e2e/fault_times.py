"""How long faults cost, as ledgers tell: kept where FAULT_TIMES names a file, and shown in docs/recovery.md."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fault_matrix import KINDS, MATRIX, PHASES, TYPES

from runner.faults.fired import FiredFaults
from runner.ledger.codec import Record
from runner.ledger.events import FaultFired, LaunchEnded, StepEnded
from runner.ledger.reader import read_run

_DOCS = Path(__file__).resolve().parents[2] / "docs"
KEPT = _DOCS / "benchmarks" / "fault-times.json"
PAGE = _DOCS / "recovery.md"
BEGIN, END = "<!-- fault times: tests/e2e/fault_times.py -->", "<!-- end of fault times -->"


def seconds_of_faults(run_folder: Path) -> dict[int, float]:
    """Seconds from each fault to the first step that all ranks have finished in a later life, or to the end of the
    command where no life came before it. A fault that struck again before the first step is left out."""
    records = read_run(run_folder).records
    faults = [record for record in records if isinstance(record.event, FaultFired)]
    return {
        fault.event.fault: seconds
        for fault, following in zip(faults, [*faults[1:], None], strict=True)
        if (seconds := _seconds(records, fault, following)) is not None
    }


def _seconds(records: tuple[Record, ...], fault: Record, following: Record | None) -> float | None:
    ranks = {record.stamp.rank for record in records if record.stamp.rank >= 0}
    stepped: set[int] = set()
    for record in records:
        if record.at <= fault.at or _life(record) == _life(fault):
            continue
        if following is not None and record.at >= following.at:
            return None
        if isinstance(record.event, LaunchEnded):
            return (record.at - fault.at) / 1e9
        if isinstance(record.event, StepEnded):
            stepped.add(record.stamp.rank)
            if stepped == ranks:
                return (record.at - fault.at) / 1e9
    return None


def _life(record: Record) -> str:
    return record.stamp.life.partition("/")[0]


def note_times(run_folder: Path, layer: str) -> None:
    """Append what the faults of a run cost to the file that FAULT_TIMES names, if it does."""
    path = os.environ.get("FAULT_TIMES")
    if not path:
        return
    seconds = seconds_of_faults(run_folder)
    with Path(path).open("a") as file:
        for fault in FiredFaults(run_folder).all():
            if fault["index"] in seconds:
                told = {key: fault[key] for key in ("type", "rank", "phase")}
                file.write(
                    json.dumps({"layer": layer, **told, "seconds": round(seconds[fault["index"]], 2)}) + "\n"
                )


def times_text() -> str:
    """The kept times in Markdown: of faults in the middle of a step by rank, of the others by phase."""
    kept: dict[str, Any] = json.loads(KEPT.read_text())
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for entry in kept["times"]:
        where = f"rank {min(entry['rank'], 1)}" if entry["phase"] == "step" else entry["phase"]
        found[entry["layer"], entry["type"], where].append(entry["seconds"])

    def cell(layer: str, kind: str, wheres: tuple[str, ...]) -> str:
        times = [found[layer, kind, where] for where in wheres]
        return " / ".join(f"{statistics.median(each):.1f}" if each else "-" for each in times)

    def rows(kinds: tuple[str, ...], first: str, wheres: tuple[tuple[str, ...], ...]) -> Iterator[str]:
        yield f"| {first} | " + " | ".join(f"`{layer}`" for layer in MATRIX) + " |"
        yield "|---" * (len(MATRIX) + 1) + "|"
        for kind in kinds:
            for where in wheres:
                name = f"`{kind}`" + (f" in {where[0]}" if len(where) == 1 else "")
                yield f"| {name} | " + " | ".join(cell(layer, kind, where) for layer in MATRIX) + " |"

    ranks = rows(TYPES, "fault", (("rank 0", "rank 1"),))
    phases = rows(KINDS, "fault", tuple((phase,) for phase in PHASES))
    return "\n".join(
        [
            f"Measured on {kept['machine']}, {kept['date']}, with the timeouts of `tests/e2e/fault_matrix.py`:",
            "seconds from a fault to the first step that all ranks finished after it, or to the end of the command.",
            "Most of it is the timeout that notices a hang, or the start of new processes on a busy machine.",
            "`-`: not measured, as where the next fault struck before that step.",
            "",
            "Rank 0 / another rank:",
            "",
            *ranks,
            "",
            "In other phases (median):",
            "",
            *phases,
        ]
    )


def main() -> None:
    """`python fault_times.py MACHINE FILE...`: keep what FAULT_TIMES collected, and show it in docs/recovery.md."""
    machine, *files = sys.argv[1:]
    times = [json.loads(line) for name in files for line in Path(name).read_text().splitlines()]
    times.sort(key=lambda entry: [entry[key] for key in ("layer", "type", "phase", "rank", "seconds")])
    lines = ",\n  ".join(json.dumps(entry) for entry in times)
    stamp = json.dumps({"machine": machine, "date": time.strftime("%Y-%m-%d", time.gmtime())})
    KEPT.write_text(f'{stamp[:-1]}, "times": [\n  {lines}\n]}}\n')
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{times_text()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
