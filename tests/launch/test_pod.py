"""A node finds its place and its leader from what an Indexed Job gives it."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.errors import InputError, RunError
from runner.launch.place import find_place
from runner.launch.pod import LeaderWatch, NodePlace, pod_identity, wait_for_name
from runner.recipe.load import load_recipe


def test_pod_of_an_indexed_job_knows_its_place() -> None:
    environ = {"NVRX_RUN_LEADER": "tiny-1a-0.tiny-1a", "JOB_COMPLETION_INDEX": "3", "NVRX_RUN_JOB": "tiny-1a"}
    place = pod_identity(environ, hostname="tiny-1a-3")
    assert place == NodePlace(3, "tiny-1a-0.tiny-1a", "tiny-1a-3.tiny-1a", "tiny-1a")


def test_slurm_node_is_reached_by_its_own_name() -> None:
    place = pod_identity({"NVRX_RUN_LEADER": "node-0", "SLURM_NODEID": "1"}, hostname="ip-10-0-0-7")
    assert place == NodePlace(1, "node-0", None, None)


def test_machine_outside_a_cluster_has_no_place() -> None:
    assert pod_identity({"JOB_COMPLETION_INDEX": "1", "SLURM_NODEID": "0"}) is None


@pytest.mark.parametrize("index", [{}, {"JOB_COMPLETION_INDEX": "one"}, {"JOB_COMPLETION_INDEX": "-1"}])
def test_leader_without_an_index_is_refused(index: dict[str, str]) -> None:
    with pytest.raises(InputError, match="completionMode Indexed"):
        pod_identity({"NVRX_RUN_LEADER": "a-0.a", **index})


def test_wait_ends_when_the_name_appears_and_the_port_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    real, born = socket.getaddrinfo, time.monotonic()

    def late(host: str, *args: object, **kwargs: object) -> object:
        if host == "late.example" and time.monotonic() < born + 0.7:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1" if host == "late.example" else host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        opener = threading.Timer(1.4, server.listen)
        opener.start()
        lines: list[str] = []
        assert wait_for_name("late.example", port=port, timeout=20, say=lines.append)
        opener.join()
    assert time.monotonic() - born > 1.2
    assert "does not resolve" in lines[0]
    assert "can be reached after" in lines[-1]


def test_wait_is_bounded_and_says_what_was_missing(free_port: int) -> None:
    begin = time.monotonic()
    with pytest.raises(RunError, match=f"nothing listens on port {free_port}"):
        wait_for_name("127.0.0.1", port=free_port, timeout=1.2, say=lambda line: None)
    assert 1 < time.monotonic() - begin < 8
    with pytest.raises(RunError, match="does not resolve"):
        wait_for_name("no-such-name.invalid", port=None, timeout=0, say=lambda line: None)


def test_wait_ends_when_asked_to_stop(free_port: int) -> None:
    asked = threading.Event()
    timer = threading.Timer(0.6, asked.set)
    timer.start()
    begin = time.monotonic()
    assert not wait_for_name(
        "127.0.0.1", port=free_port, timeout=60, say=lambda line: None, stop_requested=asked.is_set
    )
    timer.join()
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    "place", [{"NVRX_RUN_LEADER": "127.0.0.1", "JOB_COMPLETION_INDEX": "0"}, {"NODE_RANK": "0"}]
)
def test_taken_port_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
) -> None:
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        cluster = {"accelerator": "cpu", "nodes": 2, "processes_per_node": 1, "leader": "127.0.0.1"}
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe_text(tmp_path, "ft_launcher", cluster={**cluster, "rendezvous_port": port}))
        with pytest.raises(InputError, match=f"cluster.rendezvous_port: port {port} is taken"):
            find_place(load_recipe(path).recipe, say=lambda line: None, stop_requested=lambda: False)


def test_leader_whose_name_moves_to_another_address_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | None] = ["10.0.0.1"]  # a name that does not resolve for a while says nothing

    def resolve(name: str, port: object, **_: object) -> list[object]:
        assert name == "tiny-0.tiny"
        address = answers[0] if len(answers) == 1 else answers.pop(0)
        if address is None:
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    def gone(within: float) -> bool:
        end = time.monotonic() + within
        while time.monotonic() < end and not watch.gone_for():
            time.sleep(0.01)
        return watch.gone_for() > 0

    with LeaderWatch("tiny-0.tiny", every=0.01) as watch:
        answers[:] = ["10.0.0.1", None, None, "10.0.0.1"]
        assert not gone(within=0.3)
        answers[:] = ["10.0.0.2"]
        assert gone(within=20)
    answers[:] = ["10.0.0.1"]
    with LeaderWatch(None, every=0.01) as watch:
        answers[:] = ["10.0.0.2"]
        assert not gone(within=0.1)
