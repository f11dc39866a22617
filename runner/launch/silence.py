"""Which of several silent ranks is the one that hangs: from the stacks that each wrote before it was killed.

When one rank hangs, all are silent for equally long, and ft_launcher kills the one whose monitor looks first. Shortly
before, each rank's faulthandler has written its stacks to `faults/silent-rank<r>-<time>.txt`. Standard library only.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

# What a main thread is in the middle of when it waits for other ranks. The second line: while it starts.
WAITING = (
    "/torch/distributed/", "/torch/autograd/", "/torch/cuda/", "/runner/train/metrics.py",
    "/runner/recovery/meeting.py", "/runner/recovery/life.py", "/runner/train/data/source.py",
    "/runner/train/connect.py", "/runner/checkpoint/exchange.py",
)  # fmt: skip


def waits_for_peers(files: list[str]) -> bool:
    """Whether a stack, given as the files of its frames from the innermost on, is one that waits for other ranks.

    Only torch's own frames at the inner end and the caller of torch count: what is further out did not wait itself.
    """
    for file in files:
        if any(part in file for part in WAITING):
            return True
        if "/torch/" not in file:
            return False
    return False


@dataclass(frozen=True)
class Silent:
    """A rank that wrote its stacks because it was silent."""

    rank: int
    stacks: str

    @property
    def waited(self) -> bool:
        """Whether its main thread waited for others. faulthandler writes the oldest thread, the main one, last."""
        main = self.stacks.strip().split("\n\n")[-1]
        return waits_for_peers(re.findall(r'^  File "([^"]+)", line \d+', main, re.MULTILINE))


def hung_ranks(run_folder: Path, within: float, before: float) -> list[Silent]:
    """Ranks that kept the others waiting until one was killed for its silence.

    Those that wrote their stacks in the last `within` seconds and did not wait for others. Where all that wrote did
    wait, those that wrote nothing: they are frozen, and so is what would have written.

    Args:
        run_folder: of the run.
        within: seconds after which a launcher kills a silent rank.
        before: wall clock of the kill; what a later start of the workers made says nothing about it.
    """
    newest: dict[int, tuple[int, Path]] = {}
    for path in (run_folder / "faults").glob("silent-rank*.txt"):
        match = re.fullmatch(r"silent-rank(\d+)-(\d+)\.txt", path.name)
        if match is None:  # not ours
            continue
        rank, made = int(match[1]), int(match[2])
        if made <= before * 1000 and made >= newest.get(rank, (0, path))[0]:
            newest[rank] = (made, path)
    wrote, mute = [], []
    for rank, (_, path) in sorted(newest.items()):
        try:
            stat = path.stat()
            silent = Silent(rank, path.read_text(errors="replace"))
        except FileNotFoundError:  # its rank went on and took it away
            continue
        if not stat.st_size:
            mute.append(silent)
        elif time.time() - stat.st_mtime < within:
            wrote.append(silent)
    running = [silent for silent in wrote if not silent.waited]
    return running if running or not wrote else mute
