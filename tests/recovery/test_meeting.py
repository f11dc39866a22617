"""Where ranks meet is theirs alone, and they meet once rank 0 is there; those that never meet end with a reason."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tinylab import HERE, kept_port, recipe_text
from torch.distributed import TCPStore

from runner.control.outcome import OutcomeReader
from runner.errors import ExitCode, RunError
from runner.recovery.life import ProcessLife
from runner.recovery.meeting import Meeting, meet
from runner.recovery.ranks import RankFacts
from runner.system.network import ReservedPort


def test_a_rank_that_does_not_find_rank_0_says_so_and_takes_no_blame(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none", process_group_timeout="1s"))
    outcomes = OutcomeReader(tmp_path / "run")
    place = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(kept_port()),
    }  # fmt: skip
    program = [sys.executable, str(HERE / "tiny_worker.py"), str(recipe)]
    done = subprocess.run(
        program, env=os.environ | place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.CRASHED, done.stderr
    (outcome,) = outcomes.outcomes()
    assert outcome.message.startswith("rank 1 did not meet the other ranks: ")
    assert outcome.consequence


def test_a_server_that_comes_a_little_later_is_found_at_once() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        meeting = Meeting("127.0.0.1", server.getsockname()[1])
        served = threading.Timer(0.3, server.listen)
        served.start()
        began = time.monotonic()
        meeting.await_server(timedelta(seconds=30))
        assert served.finished.is_set()
        assert time.monotonic() - began < 5, "long before its limit"


def test_a_server_that_never_comes_is_waited_for_within_the_limit() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        began = time.monotonic()
        Meeting("127.0.0.1", nobody.getsockname()[1]).await_server(timedelta(seconds=0.5))
        assert 0.5 <= time.monotonic() - began < 5


IP_LOCAL_PORT_RANGE = 51  # of Linux 6.3 and later: from which ports the kernel chooses for this socket
TIMEOUT = timedelta(seconds=20)


def only(port: int) -> socket.socket:
    """A socket for which the kernel has one port to choose."""
    made = socket.socket()
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("HH", port, port))
    except OSError:
        made.close()
        pytest.skip("the kernel takes no range of ports for a socket")
    return made


def test_a_reserved_port_goes_to_nobody_but_a_server_that_names_it() -> None:
    with contextlib.closing(ReservedPort()) as reserved, socket.create_server(("127.0.0.1", 0)) as server:
        port = reserved.number
        for reuse in (0, 1):
            with only(port) as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", 0))
        with only(port) as client, pytest.raises(OSError, match="Cannot assign"):
            client.connect(server.getsockname())
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        with pytest.raises(OSError, match="in use"):
            ReservedPort(port)
        reserved.close()
        client = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
        client.set("it", "listens on")
        assert store.get("it") == b"listens on"


def facts(rank: int, port: int, *, world_size: int = 2, agent_store: bool) -> RankFacts:
    return RankFacts(
        rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size, group_rank=0,
        master_addr="127.0.0.1", master_port=port, agent_store=agent_store, restart=0, under_ft_launcher=True,
    )  # fmt: skip


def test_a_port_of_the_launcher_that_is_taken_by_now_is_named_by_rank_0() -> None:
    """Not taken for the store: whoever listens there would be asked for the other ranks, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port}, which the launcher has chosen .* in use") as taken:
            meet(facts(0, port, agent_store=False), TIMEOUT)
        assert taken.value.exit_code == ExitCode.CRASHED, "the launcher starts the workers again, elsewhere"
        assert meet(facts(1, port, agent_store=False), TIMEOUT) == Meeting("127.0.0.1", port)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_port_that_rank_0_chooses_is_kept_until_its_store_listens(world_size: int) -> None:
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    ranks = [facts(rank, agent.port, world_size=world_size, agent_store=True) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        first, *others = pool.map(lambda each: meet(each, TIMEOUT), ranks)
    assert all(other == first for other in others)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", first.port))
    store = TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    assert store.port == first.port


def test_lives_of_one_store_share_no_key() -> None:
    """What an earlier life has left there must not be taken for what a rank of this one says."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    unused: Any = None
    connections: Any = SimpleNamespace(control=store, group=store)
    keys = [store.num_keys()]
    for attempt in ("start-0", "start-1"):
        life = ProcessLife(
            rank=0, world_size=1, facts=facts(0, store.port, world_size=1, agent_store=False), attempt=attempt,
            in_process=False, connections=connections, group_timeout=TIMEOUT, ledger=unused, layer="inprocess",
            presence=unused, start_watch=unused, first_step=TIMEOUT, heartbeats=None,
        )  # fmt: skip
        assert not life.store.check(["here"])
        life.store.set("here", "1")
        life.join(torch.device("cpu"))
        life.leave()
        keys.append(store.num_keys())
    assert keys[2] - keys[1] == keys[1] - keys[0] > 1, "a process group has keys of its own as well"
