"""`nvrx-worker RECIPE [--set KEY=VALUE]...`: what a launcher starts for each rank.

Where the supervisor runs a fork server, this process stays a thin client of it; else it does the work itself.
`nvrx-worker --fork-server SOCKET RECIPE` is that server. No torch is imported before it is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from runner.control.channel import START_TIMEOUT
from runner.control.presence import Presence
from runner.launch.forkclient import run_as_client
from runner.launch.forkserver import SOCKET, ForkServer, ready_file
from runner.system.network import ReservedPort
from runner.system.process import die_with_parent

_SERVE = "--fork-server"
_USAGE = """usage: nvrx-worker RECIPE [--set KEY=VALUE]...
One rank of a run. It is started by nvrx-run, or by the torchrun or ft_launcher of `nvrx-run --emit-command`, which tell
it its rank; by hand, use nvrx-run.
"""


def main() -> int:
    """Entry point; returns the exit code in the product's terms."""
    if len(sys.argv) == 4 and sys.argv[1] == _SERVE:
        return _serve(Path(sys.argv[2]), sys.argv[3])
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(_USAGE)
        return 0
    if arguments(sys.argv[1:]) is None or "RANK" not in os.environ:
        sys.stderr.write(_USAGE)
        return 2
    server = os.environ.get(SOCKET)
    with _launchers_port():
        return run_as_client(server, _work) if server else _work()


def arguments(words: Sequence[str]) -> tuple[Path, Sequence[str]] | None:
    """The recipe and the overrides on it; None where `words` are no arguments of a worker."""
    if not words or words[0].startswith("-") or len(words) % 2 == 0 or {*words[1::2]} - {"--set"}:
        return None
    return Path(words[0]), words[2::2]


def _launchers_port() -> contextlib.AbstractContextManager[object]:
    """Keeps the port that some launchers find free for the store of rank 0: until that listens, imports may be made."""
    environ = os.environ
    if environ.get("RANK") == "0" and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        with contextlib.suppress(OSError, ValueError):  # taken already: rank 0 will say so
            return contextlib.closing(ReservedPort(int(environ.get("MASTER_PORT", ""))))
    return contextlib.nullcontext()


def fork_server_argv(worker: str, socket: Path, recipe: Path) -> list[str]:
    """The command of the fork server.

    Args:
        worker: path of the `nvrx-worker` script.
        socket: where it shall listen.
        recipe: resolved recipe whose imports are made beforehand.
    """
    return [worker, _SERVE, str(socket), str(recipe)]


def _work() -> int:
    presence = Presence.before_imports(os.environ)
    try:
        from runner.train.work import work

        given = arguments(sys.argv[1:])
        assert given is not None  # `main` has looked
        return work(*given, presence)
    finally:
        if presence.importing:  # what ended it is told by its exit status and what it has printed
            presence.leave()


def _serve(socket: Path, recipe: str) -> int:
    die_with_parent(os.getppid())
    if START_TIMEOUT in os.environ:  # shortly after it is killed: see `launch/forks.py`
        faulthandler.dump_traceback_later(float(os.environ[START_TIMEOUT]))
    server = ForkServer(socket)  # listens from now on: early clients wait for the imports
    from runner.train.work import preload

    preload(Path(recipe))
    faulthandler.cancel_dump_traceback_later()
    ready_file(socket).touch()
    server.serve()
    return _forked_work()


def _forked_work() -> int:
    """A forked worker's part. It leaves like any forked process: what its parent has imported is not its to take down.

    With torch, transformers and a CUDA context that would take most of a second, for which the launcher waits.
    """
    try:
        code = _work()
    except SystemExit as error:
        if not isinstance(error.code, int):
            raise
        code = error.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter's own end does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
