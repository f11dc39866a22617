"""ft_launcher without its fixed waits: what is ended, what is waited for, and in which releases there is something."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from nvrx_releases import release_environ

from runner.launch import prompt_launcher
from runner.launch.prompt_launcher import end_groups, shorten

IGNORES_SIGTERM = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
OBEYS = "import time; print('ready', flush=True); time.sleep(600)"


def started(code: str) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own; whoever ended it, `wait` says by which signal."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_launcher, "GRACE", 0.2)
    with started(IGNORES_SIGTERM) as process:
        end_groups([process.pid])
        assert process.wait(10) == -9


def test_the_grace_ends_with_the_last_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_launcher, "GRACE", 3600.0)
    with subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True) as gone:
        gone.wait(60)
    end_groups([gone.pid])
    with started(OBEYS) as process:
        threading.Thread(target=process.wait, daemon=True).start()  # a zombie is a member of its group
        end_groups([process.pid])
        assert process.wait(10) == -15


def test_nothing_is_ended_where_the_group_of_the_first_process_is_among_them() -> None:
    with started(OBEYS) as process:
        end_groups([1, process.pid])
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    ("version", "shortened"), [("0.4.1", []), ("0.6.0", ["grace", "round"]), ("0.7.0", ["grace", "round"])]
)
def test_the_waits_are_found_in_the_releases_that_have_them(version: str, shortened: list[str]) -> None:
    code = "from runner.launch.prompt_launcher import shorten_installed; print(sorted(shorten_installed()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=release_environ(version), capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == [str(shortened)], done.stderr


def test_a_launcher_looks_for_the_open_round_before_it_waits() -> None:
    class State:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def _sync_from_per_round_state(self) -> bool:
            self.calls.append("look")
            return True

        def _wait_for_rendezvous_open(self, node: str) -> None:
            self.calls.append(f"wait {node}")

    assert shorten(SimpleNamespace(), State) == {"round"}
    state = State()
    state._wait_for_rendezvous_open("node")
    assert state.calls == ["look", "wait node"]


def test_a_release_with_another_signature_is_left_alone() -> None:
    launcher = SimpleNamespace(terminate_mp_processes=lambda allowed_ppids, allowed_pgids: None)
    assert shorten(launcher, None) == set()
