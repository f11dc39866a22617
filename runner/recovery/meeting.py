"""Where the ranks of one set of workers meet: address and port of the store that rank 0 will serve.

The launchers differ. ft_launcher (NVRx 0.4.1) hands out a port on rank 0's node that was free. torchrun and later
ft_launchers hand out the port of their own store, which outlives its workers and may lie on another node than rank 0;
there rank 0 picks a port of its own and tells the others through that store. Nothing in it may be keyed on the
restart count: that starts again at 0 when one node's launcher is replaced. So every process asks under a name of its
own, and rank 0 answers until each has confirmed this very answer.

No server may run here yet: NVRx forks its monitor process later, and what listens then stays open in the fork. So
rank 0 only reserves the port: its store will listen on it.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from runner.errors import RunError
from runner.recovery.ranks import RankFacts
from runner.system.network import ReservedPort

_POLL_SECONDS = 0.02
_GROWTH = 1.2  # of the pause between two looks, for the sake of large jobs
_PROMPT_SECONDS = 10.0
_PREFIX = "nvrx-run/meeting"


@dataclass(frozen=True)
class Meeting:
    """The store's host and port; `held` keeps it for rank 0's store."""

    address: str
    port: int
    held: ReservedPort | None = field(default=None, compare=False, repr=False)

    def await_server(self, timeout: timedelta) -> None:
        """Return as soon as somebody listens there; at the latest after `timeout`, or a few seconds.

        A client of torch's store that comes too early tries again only after most of a second.
        """
        end = time.monotonic() + min(timeout.total_seconds(), _PROMPT_SECONDS)
        pause = _POLL_SECONDS
        while time.monotonic() < end:
            try:
                socket.create_connection((self.address, self.port), timeout=_PROMPT_SECONDS).close()
            except OSError:  # the store's own client says what is wrong, where it stays wrong
                time.sleep(pause)
                pause *= _GROWTH
            else:
                return


def own_address(towards: str) -> str:
    """This node's address on the way to `towards`, so that nodes which reach that host reach this one too."""
    try:
        family, _, _, _, target = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: asks for a route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RunError(f"cannot find this node's address towards {towards}: {error}") from error


def meet(facts: RankFacts, timeout: timedelta) -> Meeting:
    """Agree on where rank 0 will serve the store.

    Raises:
        RunError: not all ranks came within `timeout`; the launcher's port is taken by now.
    """
    if not facts.agent_store:
        held = _reserve(facts.master_port) if facts.rank == 0 else None
        return Meeting(facts.master_addr, facts.master_port, held)
    if facts.world_size == 1:
        held = ReservedPort()
        return Meeting("127.0.0.1", held.number, held)
    try:
        agent = TCPStore(
            facts.master_addr, facts.master_port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        return _invite(agent, facts, timeout) if facts.rank == 0 else _ask(agent, facts, timeout)
    except DistError as error:
        raise RunError(
            f"rank {facts.rank} cannot reach the launcher's store at {facts.master_addr}:{facts.master_port}: {error}"
        ) from error


def _reserve(port: int) -> ReservedPort:
    try:
        return ReservedPort(port)
    except OSError as error:  # a launcher that restarts its workers finds another port
        raise RunError(
            f"port {port}, which the launcher has chosen for the store of the ranks, is taken by now: {error.strerror}"
        ) from error


def _invite(agent: TCPStore, facts: RankFacts, timeout: timedelta) -> Meeting:
    token = uuid.uuid4().hex
    held = ReservedPort()
    place = Meeting(own_address(facts.master_addr), held.number, held)
    answer = json.dumps({"address": place.address, "port": place.port, "token": token})
    missing = set(range(1, facts.world_size))
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for rank in sorted(missing):
            if not agent.check([f"{_PREFIX}/asks/{rank}"]):
                continue
            name = agent.get(f"{_PREFIX}/asks/{rank}").decode()
            agent.set(f"{_PREFIX}/answer/{name}", answer)
            if agent.check([f"{_PREFIX}/thanks/{name}/{token}"]):
                missing.discard(rank)
        if missing:
            if time.monotonic() > deadline:
                raise RunError(
                    f"ranks {sorted(missing)} did not come within {timeout.total_seconds():.0f}s "
                    "(recovery.rendezvous_timeout)"
                )
            time.sleep(_POLL_SECONDS)
    return place


def _ask(agent: TCPStore, facts: RankFacts, timeout: timedelta) -> Meeting:
    name = uuid.uuid4().hex
    agent.set(f"{_PREFIX}/asks/{facts.rank}", name)
    try:
        agent.wait([f"{_PREFIX}/answer/{name}"], timeout)
    except DistError as error:
        raise RunError(
            f"rank {facts.rank} had no answer from rank 0 within {timeout.total_seconds():.0f}s "
            "(recovery.rendezvous_timeout)"
        ) from error
    answer = json.loads(agent.get(f"{_PREFIX}/answer/{name}"))
    agent.set(f"{_PREFIX}/thanks/{name}/{answer['token']}", "")
    return Meeting(answer["address"], int(answer["port"]))
