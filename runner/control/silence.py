"""Which of several silent ranks is the one that hangs: from the stacks that each wrote before it was killed.

When one rank hangs, all are silent for equally long, and ft_launcher kills the one whose monitor looks first. Shortly
before, each rank's faulthandler has written its stacks to `faults/silent-rank<r>-<time>.txt`. The file is there from
the start of a life. A rank that is stopped writes nothing; its supervisor says so in the file, and since when. Where
nothing was written it goes with the life or, after a kill, by the supervisor's hand.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from runner.streams import complain
from runner.system.process import alive

# What a main thread is in the middle of when it waits for other ranks. The second line: while it starts.
WAITING = (
    "/torch/distributed/", "/torch/autograd/", "/torch/cuda/", "/runner/train/metrics.py",
    "/runner/recovery/meeting.py", "/runner/recovery/life.py", "/runner/train/data/source.py",
    "/runner/train/connect.py", "/runner/checkpoint/exchange.py",
    "/nvidia_resiliency_ext/inprocess/store.py",
)  # fmt: skip
_OURS = re.compile(r"silent-rank(\d+)-(\d+)\.txt")
_ANNOUNCED = "silent"  # in the control folder: a file a worker, which names its file for stacks
_FROZEN = re.compile(r"frozen \(SIGSTOP\) since (\d+\.\d+)\n\n")
_SETTLED = 10.0  # seconds after which no supervisor of the run asks any more whether a dead worker was frozen


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


def waits_for_data(files: list[str]) -> bool:
    """Whether such a stack is one that waits for a data worker."""
    return any("/runner/train/data/watch.py" in file for file in files)


def files_of(frame: FrameType | None) -> list[str]:
    """The files of a stack's frames, from the innermost on."""
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def announce(control: Path, stacks: Path) -> None:
    """Called by a worker: the file for its stacks, which its supervisor takes away if the worker cannot."""
    folder = control / _ANNOUNCED
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).write_text(str(stacks))


def mark_frozen(control: Path, pid: int, since: float) -> None:
    """Say in a worker's file for stacks that it is stopped: for supervisors of other nodes, and for who reads it.

    Args:
        control: the node's control folder.
        pid: the worker.
        since: wall clock, seconds.
    """
    _write(control, pid, "a", f"frozen (SIGSTOP) since {since:.3f}\n\n")


def take_mark_back(control: Path, pid: int) -> None:
    """The worker went on: what its file says is over."""
    _write(control, pid, "w", "")


def _write(control: Path, pid: int, mode: str, text: str) -> None:
    path = None
    try:
        path = Path((control / _ANNOUNCED / str(pid)).read_text())
        if path.is_file():  # else it was killed while it announced one, or has ended its life
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
    except FileNotFoundError:  # of a layer without such files
        pass
    except OSError as error:  # it is known here, and on other nodes told by stacks
        complain(f"{path}: it cannot be noted that its rank is frozen: {error.strerror}")


class EmptyStacks:
    """The supervisor's view of its node's files for stacks. An empty one tells of a frozen rank, for a while.

    Args:
        control: the node's control folder.
    """

    def __init__(self, control: Path) -> None:
        self._folder = control / _ANNOUNCED
        self._gone: dict[str, float] = {}  # workers by process id, and when they were first found to be gone

    def remove(self, now: float, *, all_gone: bool = False) -> None:
        """Remove those to which a worker that is gone has written nothing.

        Args:
            now: monotonic time, seconds; what became of a worker is settled some seconds after its end.
            all_gone: no worker of this node is left, and nobody asks any more what they hung in.
        """
        with contextlib.suppress(FileNotFoundError):  # no worker has announced any
            for name in os.listdir(self._folder):  # noqa: PTH208 - names are process ids
                if not all_gone and (alive(int(name)) or now < self._gone.setdefault(name, now) + _SETTLED):
                    continue
                path = Path((self._folder / name).read_text())
                if path.name:  # else it was killed while it announced one
                    remove_if_empty(path)
                (self._folder / name).unlink(missing_ok=True)
                self._gone.pop(name, None)


def remove_leftover_stacks(run_folder: Path) -> None:
    """Remove what launches that were killed with all they had started left empty. No worker of the run may be alive."""
    for path in (run_folder / "faults").glob("silent-rank*.txt"):
        if _OURS.fullmatch(path.name):
            remove_if_empty(path)


def remove_if_empty(path: Path) -> None:
    """Remove a file that nothing was written to."""
    try:
        if path.stat().st_size == 0:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:  # nothing depends on it
        complain(f"{path}: empty, and cannot be removed: {error.strerror}")


@dataclass(frozen=True)
class Silent:
    """A rank that wrote its stacks because it was silent."""

    rank: int
    stacks: str

    @property
    def frozen_since(self) -> float | None:
        """Since when it was stopped, wall clock; None where it was not. What follows it wrote when it was woken."""
        match = _FROZEN.match(self.stacks)
        return float(match[1]) if match else None

    @property
    def waited(self) -> bool:
        """Whether its main thread waited for others."""
        return waits_for_peers(self._files())

    @property
    def waited_for_data(self) -> bool:
        """Whether its main thread waited for a data worker."""
        return waits_for_data(self._files())

    def _files(self) -> list[str]:
        """Of the main thread's frames, innermost first. faulthandler writes the oldest thread, the main one, last."""
        main = self.stacks.strip().split("\n\n")[-1]
        return re.findall(r'^  File "([^"]+)", line \d+', main, re.MULTILINE)


def hung_ranks(run_folder: Path, within: float, before: float) -> list[Silent]:
    """Ranks that kept the others waiting until one was killed for its silence.

    Those that were stopped. Where none was, those that wrote their stacks in the last `within` seconds and did not wait
    for others. Where all that wrote did wait, those that wrote nothing: they are frozen, and so is what would have
    written.

    Args:
        run_folder: of the run.
        within: seconds after which a launcher kills a silent rank.
        before: wall clock of the kill; what a later start of the workers made says nothing about it.
    """
    newest: dict[int, tuple[int, Path]] = {}
    for path in (run_folder / "faults").glob("silent-rank*.txt"):
        match = _OURS.fullmatch(path.name)
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
    frozen = [silent for silent in wrote if silent.frozen_since is not None]
    running = frozen or [silent for silent in wrote if not silent.waited]
    return running if running or not wrote else mute
