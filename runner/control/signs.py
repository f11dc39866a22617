"""The small file by which a worker says how far it is, as whoever reads it sees it. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

IMPORTS = "imports"  # the part of start-up before the recipe is read


@dataclass(frozen=True)
class WorkerSign:
    """What is known about one worker process.

    Attributes:
        pid: its process.
        rank: of its first life.
        local_rank: its place on the node.
        restart: how often its launcher had restarted the workers before.
        attempt: its life; empty before the ranks have met.
        step: steps finished.
        part: of start-up that it is in; empty outside of start-up.
        since: monotonic clock at which that part began.
        longest: seconds that it may take.
    """

    pid: int
    rank: int
    local_rank: int
    restart: int
    attempt: str
    step: int
    part: str = ""
    since: float = 0.0
    longest: float = 0.0


def setting_of(part: str) -> str:
    """The setting that limits a part of start-up."""
    return {"preparation": "recovery.rendezvous_timeout", "restore": "checkpoint.load_timeout"}.get(
        part, "recovery.start_timeout"
    )


def start_of(attempt: str) -> str:
    """What the lives of one set of worker processes have in common in their names; empty before the ranks have met.

    A launcher's own count of its restarts does not tell two starts apart: it counts none that a fault on another node
    has made it join, so nodes may also count differently.
    """
    return "-".join(attempt.split("-")[:2])  # what follows counts the lives in one process


def signs_folder(control: Path) -> Path:
    """Where the workers of a node have their files, each named by its process id."""
    folder = control / "workers"
    folder.mkdir(exist_ok=True)
    return folder


def stacks_file(control: Path, pid: int) -> Path:
    """What the alarm of a worker that starts for too long writes to."""
    folder = control / "stacks"
    folder.mkdir(exist_ok=True)
    return folder / f"{pid}.txt"


def read_sign(folder: Path, pid: int) -> WorkerSign | None:
    """What a worker said last; None where it has left, or is just about to say its first."""
    try:
        text = (folder / str(pid)).read_text()
    except FileNotFoundError:  # it has just left
        return None
    parts = text.partition("\n")[0].split()  # what is left of a longer line may follow for a moment
    if len(parts) != 8:  # it is just being written for the first time
        return None
    return WorkerSign(
        pid=pid,
        step=int(parts[0]),
        rank=int(parts[1]),
        local_rank=int(parts[2]),
        restart=int(parts[3]),
        attempt=parts[4] if parts[4] != "-" else "",
        part=parts[5] if parts[5] != "-" else "",
        since=float(parts[6]),
        longest=float(parts[7]),
    )
