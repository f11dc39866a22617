"""Faults of no rank: somebody has killed what the workers of a node hang on, and they ended with it.

What a worker says after that (its monitor is gone, a connection is closed), or how it ends, only follows from it.
"""

from __future__ import annotations

from pathlib import Path

from runner.control.signs import WorkerSign
from runner.faults.records import NO_RANK, FaultRecord, write_record
from runner.ledger.events import FaultSeen
from runner.ledger.writer import LedgerWriter
from runner.streams import complain


def tell_outside_fault(
    ledger: LedgerWriter, run_folder: Path, layer: str, latest: WorkerSign | None, what: str, ago: float = 0.0
) -> None:
    """Tell the account and the post-mortem of a fault of no rank.

    Args:
        ledger: the supervisor's.
        run_folder: where the record goes.
        layer: name of the recovery layer.
        latest: what a worker of this node said last, which names the life; None where none had come.
        what: the fault, in one line.
        ago: seconds since it was seen.
    """
    ledger.record(FaultSeen("launcher", what), ago=ago)
    record = FaultRecord(
        kind="died",
        rank=NO_RANK,
        step=latest.step if latest is not None else 0,
        layer=layer,
        attempt=latest.attempt if latest is not None and latest.attempt else "none",
        what=what,
    )
    try:
        write_record(run_folder, record)
    except OSError as error:  # the account has it
        complain(f"nvrx-run: what is known about a fault cannot be written: {run_folder}: {error.strerror}")
