"""Where the processes of a launch put temporary files, so that none is left behind, whichever of them is killed.

multiprocessing makes a folder in each worker, NVRx sockets for its launcher and each rank monitor. What is killed
leaves them behind, and multiprocessing's children often do where they are not. Standard library only.
"""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

_LONGEST_SOCKET = 107  # bytes of a UNIX socket's path, on Linux
_LONGEST_NAME = (
    45  # of what is made there: `_ft_launcher4194304_to_rmon.socket`, `pymp-abcdefgh/listener-abcdefgh`
)
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def scratch_environ(control: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of processes whose temporary files go with the control folder.

    Empty where sockets in there would have names that are too long for the kernel. What torch has compiled stays where
    it is without this: it is to be found again.

    Args:
        control: the node's control folder.
        environ: what the processes get besides.
    """
    folder = control / "tmp"
    if len(os.fsencode(folder)) + 1 + _LONGEST_NAME > _LONGEST_SOCKET:
        return {}
    folder.mkdir(exist_ok=True)
    # As torch names it: `torch/_inductor/runtime/cache_dir_utils.py`.
    kept = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", _user())
    compiled = environ.get(_COMPILED) or str(Path(tempfile.gettempdir()) / kept)
    return {"TMPDIR": str(folder), _COMPILED: compiled}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number, as in many containers
        return f"uid_{os.getuid()}"
