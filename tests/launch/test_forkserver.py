"""The fork server and its clients, as real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.control.channel import START_TIMEOUT, Control
from runner.launch.forks import fork_server
from runner.launch.forkserver import how_ended, ready_file
from runner.system.process import alive

SERVER = """
import ctypes, os, platform, signal, sys, threading, time
from pathlib import Path
from runner.control.farewell import mark_done
from runner.launch.forkserver import ForkServer
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
server, fork = ForkServer(Path(sys.argv[1])), os.fork
def limited():
    if Path(sys.argv[1]).with_name("no-processes").exists():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = limited
print("ready", flush=True)
request = server.serve()
what = request.argv[1]
if what == "handle":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(77))
print("worker", os.getpid(), os.environ["MARK"], os.getcwd(), flush=True)
if what == "exit":
    sys.exit(int(request.argv[2]))
if what == "done":
    mark_done(Path(sys.argv[1]).parent)
if what in ("kill", "done"):
    os.kill(os.getpid(), int(request.argv[2]))
if what == "linger":  # like a process behind which a driver clears up: its first thread is gone, the process is not
    def end_when_told():
        while not os.path.exists(request.argv[3]):
            time.sleep(0.01)
        os._exit(int(request.argv[2]))
    threading.Thread(target=end_when_told).start()
    ctypes.CDLL(None).syscall(ctypes.c_long(SYS_EXIT), ctypes.c_long(int(request.argv[2])))
if what == "look":
    print("seen" if os.path.exists(f"/proc/{request.argv[2]}") else "gone", flush=True)
    sys.exit(0)
if what == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
for _ in range(1200):  # a signal that comes just before a sleep begins is handled after it
    time.sleep(0.05)
"""
CLIENT = """
import sys
from runner.launch.forkclient import run_as_client
sys.exit(run_as_client({path!r}, lambda: 55, patience=5))
"""


class Clients:
    def __init__(self, path: Path, server: subprocess.Popen[str]) -> None:
        self.socket, self.server = path, server

    def start(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
        code = CLIENT.format(path=str(self.socket))
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "MARK": "set"}, cwd=folder or self.socket.parent, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    path = tmp_path / "server"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield Clients(path, server)
    server.kill()
    server.wait()


def worker_of(client: subprocess.Popen[str]) -> int:
    assert client.stdout is not None
    word, pid, *_ = client.stdout.readline().split()
    assert word == "worker"
    return int(pid)


def gone(pid: int, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("code", [0, 1, 12])
def test_the_workers_exit_code_is_the_clients(clients: Clients, tmp_path: Path, code: int) -> None:
    client = clients.start("exit", str(code), folder=tmp_path)
    output, _ = client.communicate(timeout=20)
    assert client.returncode == code
    assert output.split()[2:] == ["set", str(tmp_path)]


def test_who_connects_and_asks_for_nothing_holds_up_nobody(clients: Clients) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as frozen,
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as dies,
    ):
        for caller in (frozen, dies):
            caller.connect(str(clients.socket))
        dies.close()
        client = clients.start("exit", "12")
        client.communicate(timeout=20)
        assert client.returncode == 12
        frozen.send(b"{}")  # no file descriptors: nobody that a worker could be made for
        frozen.settimeout(20)
        assert frozen.recv(1) == b""
    assert clients.server.poll() is None


def test_a_request_that_does_not_arrive_whole_takes_no_worker_along(clients: Clients) -> None:
    first = clients.start("sleep")
    worker_of(first)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(20)
        caller.connect(str(clients.socket))
        socket.send_fds(caller, [b'{"argv": ["sle'], [0, 1, 2])
        assert caller.recv(4096) == b""
    second = clients.start("exit", "3")
    second.communicate(timeout=20)
    assert second.returncode == 3
    assert first.poll() is None and clients.server.poll() is None


def test_where_no_process_can_be_forked_the_client_does_without_and_the_workers_go_on(
    clients: Clients, tmp_path: Path
) -> None:
    first = clients.start("sleep")
    worker_of(first)
    (tmp_path / "no-processes").touch()
    second = clients.start("exit", "0")
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 55 and "does not answer" in errors
    (tmp_path / "no-processes").unlink()
    third = clients.start("exit", "3")
    third.communicate(timeout=20)
    assert third.returncode == 3
    assert first.poll() is None and clients.server.poll() is None


def test_whatever_kills_a_worker_that_is_done_its_client_ends_well(clients: Clients) -> None:
    client = clients.start("done", str(int(signal.SIGSEGV)))
    worker = worker_of(client)
    client.communicate(timeout=20)
    assert client.returncode == 0
    assert how_ended(clients.socket.parent, worker) == -signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_signal_that_kills_the_worker_kills_the_client(clients: Clients, number: signal.Signals) -> None:
    client = clients.start("kill", str(int(number)))
    output, _ = client.communicate(timeout=20)
    assert client.returncode == -number
    assert how_ended(clients.socket.parent, int(output.split()[1])) == -number


def test_a_failure_is_told_before_the_process_is_gone_and_the_next_worker_starts_after(
    clients: Clients, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    first = clients.start("linger", "12", str(told))
    pid = worker_of(first)
    assert first.wait(timeout=20) == 12
    assert how_ended(clients.socket.parent, pid) == 12
    assert Path(f"/proc/{pid}").exists()
    second = clients.start("look", str(pid))
    time.sleep(
        0.5
    )  # would be enough for a worker that waits for nobody; one that does passes whatever the time
    told.touch()
    output, _ = second.communicate(timeout=20)
    assert (output.split()[-1], second.returncode) == ("gone", 0)


def test_an_end_without_failure_is_told_when_the_process_is_gone(clients: Clients, tmp_path: Path) -> None:
    """A kernel that does not say how a process ends says 0: that of a process that has been killed, too."""
    told = tmp_path / "told"
    client = clients.start("linger", "0", str(told))
    worker_of(client)
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(timeout=0.3)
    told.touch()
    assert client.wait(timeout=20) == 0


def test_sigterm_to_the_client_reaches_the_worker(clients: Clients) -> None:
    client = clients.start("handle")
    worker_of(client)
    client.terminate()
    assert client.wait(timeout=20) == 77


@pytest.mark.parametrize("state", ["sleep", "stop"])
def test_a_killed_client_takes_its_worker_along_even_a_stopped_one(clients: Clients, state: str) -> None:
    client = clients.start(state)
    pid = worker_of(client)
    client.kill()
    client.wait()
    assert gone(pid)


def test_a_killed_server_takes_workers_along_and_clients_say_so(clients: Clients) -> None:
    client = clients.start("sleep")
    pid = worker_of(client)
    clients.server.kill()
    _, errors = client.communicate(timeout=20)
    assert client.returncode == 1
    assert "the fork server died" in errors
    assert gone(pid)


def test_many_workers_at_once_and_one_after_the_other(clients: Clients) -> None:
    for _ in range(3):
        started = [clients.start("exit", str(code)) for code in range(4)]
        assert [client.wait(timeout=20) for client in started] == [0, 1, 2, 3]
        for client in started:
            client.communicate()


def test_without_a_server_the_client_runs_the_command_itself_and_says_so(tmp_path: Path) -> None:
    client = Clients(tmp_path / "nobody", None).start("exit", "0")  # type: ignore[arg-type]
    _, errors = client.communicate(timeout=20)
    assert client.returncode == 55
    assert "does not answer" in errors


def test_what_the_server_of_the_launch_before_has_left_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower whose leader was on its way out launches once more, in the same control folder."""
    left = [tmp_path / "fork-server", ready_file(tmp_path / "fork-server")]
    for path in left:
        path.touch()
    monkeypatch.setattr("runner.train.worker.fork_server_argv", lambda *_: ["sleep", "60"])
    environment = os.environ | {START_TIMEOUT: "30"}
    with (
        (tmp_path / "log").open("wb") as log,
        fork_server(tmp_path / "recipe.yaml", environment, log, Control(tmp_path)),
    ):
        assert not any(path.exists() for path in left)
