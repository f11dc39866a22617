"""A node's place in a run of several nodes, and the wait for its leader.

An Indexed Job gives each pod its index and a host name `<job>-<index>`; the manifest adds the leader's name. Slurm
gives `SLURM_NODEID`. No shell, no sleep and no guess from addresses is needed beyond that.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.emit.names import JOB, LEADER
from runner.errors import InputError, RunError

_INDEX = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
_WATCH_EVERY = 5.0  # seconds between two looks at the leader's address
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


class LeaderWatch:
    """Notices, on a follower, that the leader's name has another address: its pod was lost, and another took its place.

    A node that loses power closes no connection. Whatever waits for an answer of its stores then waits until the
    kernel gives the connection up, about a quarter of an hour. The new leader cannot start without this node, so
    the launch here has to end before that. A name that does not resolve says nothing.

    Args:
        name: the leader's; None to watch nothing.
        every: seconds between two looks.
    """

    def __init__(self, name: str | None, *, every: float = _WATCH_EVERY) -> None:
        self._name = name
        self._every = every
        self._over = threading.Event()
        self._replaced_at: float | None = None

    def gone_for(self) -> float:
        """Seconds since another pod was seen to have the leader's name; 0 while it is the first one's."""
        return 0.0 if self._replaced_at is None else time.monotonic() - self._replaced_at

    def __enter__(self) -> LeaderWatch:
        """Begin: the leader is who has the name now."""
        if self._name is not None:
            first = _addresses(self._name)
            threading.Thread(target=self._watch, args=(first,), name="leader", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; a look that is under way is left to itself."""
        self._over.set()

    def _watch(self, first: frozenset[str]) -> None:
        assert self._name is not None
        while not self._over.wait(self._every):
            found = _addresses(self._name)
            first = first or found
            if found and found.isdisjoint(first):
                self._replaced_at = time.monotonic()
                return


def _addresses(name: str) -> frozenset[str]:
    """Addresses of a name; none where it does not resolve."""
    try:
        return frozenset(str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()


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
