"""What commands left behind whose two processes were both killed: control folders, and the shared memory of their runs.

A control folder says, in a note, which run it is of and which processes use it. The next start of a run removes what
that run left, and so does, where the processes can be known to be gone, the start of any other run of the same user:
staging buffers are as large as a model's state, and a run that never comes back would hold its node's memory for good.
Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint.shm import remove_leftovers
from runner.streams import complain
from runner.strictjson import parse
from runner.system.process import stat_fields

PREFIX = "nvrx-run-"  # of a control folder's name, in the folder for temporary files
_NOTE = "owner.json"
_TAKEN = ".stale"  # ends the name of a folder that somebody removes
_STARTED = 19  # field of `stat_fields`: clock ticks from the machine's start to the process'


@dataclass(frozen=True)
class _Owner:
    """Whose a control folder is.

    Attributes:
        run: folder of the run.
        run_id: names the run's shared memory.
        node: rank of the command's node in the run.
        boot: of the machine.
        pids: the namespace in which the processes have their numbers.
        processes: the command's, each with when it began.
    """

    run: str
    run_id: str
    node: int
    boot: str
    pids: str
    processes: dict[str, str]

    def is_at_work(self) -> bool:
        """Whether one of the processes is there, as far as this process can see."""
        return self.boot == _boot() and any(
            _started(int(pid)) == started for pid, started in self.processes.items()
        )

    def can_be_seen(self) -> bool:
        """Whether `is_at_work` is the truth: nodes, and pods on one, may share the folder for temporary files."""
        return (self.boot, self.pids) == (_boot(), _namespace())


def sign(control: Path, run_folder: Path, run_id: str, node_rank: int, pids: tuple[int, ...]) -> None:
    """Note whose a control folder is.

    Args:
        control: the folder.
        run_folder: of the run.
        run_id: names the run's shared memory.
        node_rank: of the command's node in it.
        pids: the processes of the command.
    """
    processes = {str(pid): _started(pid) for pid in pids}
    owner = _Owner(str(run_folder), run_id, node_rank, _boot(), _namespace(), processes)
    (control / _NOTE).write_text(json.dumps(vars(owner)), encoding="ascii")


def remove_stale(run_folder: Path, node_rank: int) -> None:
    """Remove control folders whose processes are gone, and the shared memory of the other runs among them.

    The caller has its node's lock on the run, and its own shared memory is its own business: of a run that is this
    one, each folder of this node goes that is not in use; of others, those of this machine that can be seen not to be.
    A folder of another user's, or without a whole note, is left alone.
    """
    found = dict(_owners())
    kept: set[str] = set()
    stale: list[tuple[Path, _Owner]] = []
    for folder, owner in found.items():
        ours = (owner.run, owner.node) == (str(run_folder), node_rank)
        if (ours or owner.can_be_seen()) and not owner.is_at_work():
            stale.append((folder, owner))
        else:
            kept.add(owner.run_id)
    for folder, owner in stale:
        taken_at = time.time()
        try:
            taken = folder.rename(folder.with_name(folder.name + _TAKEN))
        except OSError:  # somebody else removes it
            continue
        if owner.run != str(run_folder) and owner.run_id not in kept:
            # Should that run begin again this moment, it takes its folder before it makes anything in shared memory.
            remove_leftovers(owner.run_id, before=taken_at)
        shutil.rmtree(taken, ignore_errors=True)
        if taken.exists():
            complain(f"nvrx-run: {taken} is left by a killed command of {owner.run}, and cannot be removed")


def _owners() -> Iterator[tuple[Path, _Owner]]:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            note = parse((folder / _NOTE).read_bytes())
            text = {name: str(note[name]) for name in ("run", "run_id", "boot", "pids")}
            processes = {str(int(pid)): str(started) for pid, started in note["processes"].items()}
            owner = _Owner(**text, node=int(note["node"]), processes=processes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not ours, or somebody removes it
            continue
        yield folder, owner


def _started(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[_STARTED] if fields is not None and fields[0] not in "ZX" else ""


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
