"""Control folders that a command left behind whose two processes were both killed: the run's next start removes them.

Each says, in a note, which run it is of and which processes use it. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from runner.launch.process import stat_fields
from runner.streams import complain
from runner.strictjson import parse

PREFIX = "nvrx-run-"  # of a control folder's name, in the folder for temporary files
_NOTE = "owner.json"
_STARTED = 19  # field of `stat_fields`: clock ticks from the machine's start to the process'


def sign(control: Path, run_folder: Path, node_rank: int, pids: tuple[int, ...]) -> None:
    """Note whose a control folder is.

    Args:
        control: the folder.
        run_folder: of the run.
        node_rank: of the command's node in it.
        pids: the processes of the command.
    """
    owner = {
        "run": str(run_folder),
        "node": node_rank,
        "boot": _boot(),
        "processes": {str(pid): _started(pid) for pid in pids},
    }
    (control / _NOTE).write_text(json.dumps(owner), encoding="ascii")


def remove_stale_folders(run_folder: Path, node_rank: int) -> None:
    """Remove this node's control folders of a run whose processes are gone. The caller has that node's lock on the run.

    Nodes, and pods on one, may share the folder for temporary files: another's processes cannot be seen from here.
    A folder of another user's, or without a whole note, is left alone.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            owner = parse((folder / _NOTE).read_bytes())
            if (owner["run"], owner["node"]) != (str(run_folder), node_rank):
                continue
            used = owner["boot"] == _boot() and any(
                _started(int(pid)) == started for pid, started in owner["processes"].items()
            )
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # not ours, or somebody else removes it
            continue
        if not used:
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                complain(f"nvrx-run: {folder} is left by a killed command of this run, and cannot be removed")


def _started(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[_STARTED] if fields is not None and fields[0] not in "ZX" else ""


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
