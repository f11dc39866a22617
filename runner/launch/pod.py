"""A node's place in a run of several nodes, and the wait for its leader.

An Indexed Job gives each pod its index and a host name `<job>-<index>`; the manifest adds the leader's name. Slurm
gives `SLURM_NODEID`. No shell, no sleep and no guess from addresses is needed beyond that.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.emit.names import JOB, LEADER
from runner.errors import InputError, RunError

_INDEX = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
_REPORT_EVERY = 15.0  # seconds between log lines of a wait
_LOOK_EVERY = 0.5


@dataclass(frozen=True)
class NodePlace:
    """Where this node stands.

    Attributes:
        node_rank: 0 for the leader.
        leader: name of node 0.
        address: name under which the other nodes reach this one; None leaves it to the machine.
        job: name of the job, or None.
    """

    node_rank: int
    leader: str
    address: str | None
    job: str | None


def pod_identity(environ: Mapping[str, str], *, hostname: str | None = None) -> NodePlace | None:
    """This node's place, from its environment; None where no cluster manager speaks (`NVRX_RUN_LEADER` is unset).

    Args:
        environ: the process's environment.
        hostname: of this machine; its own by default.

    Raises:
        InputError: a leader without an index, or an index that is no number.
    """
    leader = environ.get(LEADER)
    if not leader:
        return None
    index = next((environ[name] for name in _INDEX if environ.get(name)), None)
    if index is None or not index.isdecimal():
        raise InputError(
            f"{LEADER} is set, so this is one node of several, but {' and '.join(_INDEX)} "
            f"{'are not' if index is None else f'hold {index!r}, which is no index'}: "
            "the Job needs completionMode Indexed, srun one task a node"
        )
    return NodePlace(
        node_rank=int(index),
        leader=leader,
        address=_own_name(leader, int(index), hostname or socket.gethostname()),
        job=environ.get(JOB) or None,
    )


def _own_name(leader: str, index: int, hostname: str) -> str | None:
    """`job-2.service` for the pod `job-2` of a leader `job-0.service`."""
    match = re.fullmatch(r"(?P<job>[^.]+)-0(?P<domain>\..+)?", leader)
    if not match or hostname.split(".")[0] != f"{match['job']}-{index}":
        return None
    return f"{match['job']}-{index}{match['domain'] or ''}"


def wait_for_name(
    name: str,
    *,
    port: int | None,
    timeout: float,
    say: Callable[[str], None],
    stop_requested: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until `name` resolves and, where a port is given, something accepts connections there.

    Args:
        name: host to look up, anew each time: a replaced pod has another address.
        port: where the leader's rendezvous listens; None to wait for the name alone (the leader, for its own).
        timeout: longest wait, seconds.
        say: takes a line for the log: at the start of a wait, every 15 s, and at its end.
        stop_requested: looked at twice a second; True ends the wait.

    Returns:
        True when it can be reached, False when asked to stop before.

    Raises:
        RunError: not within `timeout`; says what was missing last.
    """
    begin = time.monotonic()
    next_report = begin
    while True:
        missing = _missing(name, port)
        now = time.monotonic()
        if missing is None:
            if next_report > begin:
                say(f"{name} can be reached after {now - begin:.1f} s")
            return True
        if now - begin >= timeout:
            raise RunError(
                f"{name}: {missing}, for {timeout:.0f} s; look at the pod of index 0, the headless Service and DNS, "
                "or raise cluster.kubernetes.leader_timeout"
            )
        if stop_requested():
            return False
        if now >= next_report:
            say(f"waiting for {name}: {missing} (for {timeout - (now - begin):.0f} s more at most)")
            next_report = now + _REPORT_EVERY
        time.sleep(min(_LOOK_EVERY, max(0.0, timeout - (now - begin))))


def _missing(name: str, port: int | None) -> str | None:
    """What keeps `name` from being reached, or None."""
    try:
        socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name does not resolve ({error.strerror or error})"
    if port is None:
        return None
    try:
        with socket.create_connection((name, port), timeout=5):
            return None
    except OSError as error:
        return f"nothing listens on port {port} ({error.strerror or error})"
