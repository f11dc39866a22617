"""What can go wrong before a run has begun: one line, the right code, nothing made."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinylab import recipe_text

from runner.control.channel import Control
from runner.errors import ExitCode, RunError, in_another_locale
from runner.launch.signals import StopRequests, put_back, stop_before_start, stop_signals
from runner.launch.terminal import _pump
from runner.recipe.load import load_recipe

NVRX_RUN = str(Path(sys.executable).with_name("nvrx-run"))


def struck(number: signal.Signals, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`nvrx-run ARGUMENTS` that gets a signal in the moment in which it would read its recipe."""
    program = (
        "import os, sys\n"
        "from runner import cli\n"
        f"cli._load = lambda arguments: os.kill(os.getpid(), {int(number)})\n"
        f"sys.exit(cli.main({list(arguments)!r}))\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_before_anything_is_started_ends_with_the_code_for_it(number: signal.Signals) -> None:
    done = struck(number, "recipe.yaml")
    assert done.returncode == ExitCode.PREEMPTED, done.stderr
    assert done.stdout == ""
    assert done.stderr == (
        f"nvrx-run: {number.name}: stopped before anything was started; the same command starts it\n"
    )


def test_a_run_that_is_refused_leaves_signals_as_they_were() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(RunError), stop_before_start():
        assert all(signal.getsignal(number) not in before for number in numbers)
        raise RunError("refused")
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("action", [[], ["--checkpoints"]])
def test_a_path_that_the_locale_cannot_name_is_one_line_with_the_remedy(
    tmp_path: Path, action: list[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    folder = tmp_path / "läufe"
    recipe.write_text(recipe_text(folder, "none"), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [NVRX_RUN, *action, str(recipe)],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | ascii_only,
    )  # fmt: skip
    assert done.returncode == ExitCode.BAD_RECIPE
    (line,) = done.stderr.splitlines()
    assert "the locale's ascii has no '\\xe4'; use one of UTF-8, e.g. LC_ALL=C.UTF-8" in line
    assert not folder.exists()


def requests_with_relay(tmp_path: Path) -> tuple[StopRequests, int]:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    loaded = load_recipe(str(recipe), ["recovery.stop_signals=[SIGUSR2]"])
    heard, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    return StopRequests(loaded.recipe, heard), told


def test_a_terminal_that_is_gone_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    reader, writer = os.pipe()
    pump = threading.Thread(target=_pump, args=(reader, ours.fileno()), daemon=True)
    pump.start()
    for _ in range(40):  # more than a pipe holds
        os.write(writer, b"x" * 8192)
    os.close(writer)
    pump.join(20)
    assert not pump.is_alive()
    os.close(reader)
    ours.close()


@pytest.fixture
def handlers_put_back() -> Iterator[None]:
    """A supervisor listens to its last moment; a test does not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGHUP)}
    yield
    put_back(before)


@pytest.mark.usefixtures("handlers_put_back")
def test_a_signal_to_all_processes_of_the_command_is_one_wish(tmp_path: Path) -> None:
    requests, told = requests_with_relay(tmp_path)
    requests.listen()
    signal.raise_signal(signal.SIGUSR2)
    assert not requests  # the first process may be about to tell of it
    os.write(told, bytes([signal.SIGUSR2]))
    control = Control(tmp_path)
    for later in range(5):
        requests.honour(control, float(later))
    assert requests.honoured == "SIGUSR2"
    os.write(told, bytes([signal.SIGUSR2]))
    with pytest.raises(RunError, match="second signal"):
        requests.honour(control, 5.0)


def test_the_end_of_a_terminal_asks_to_stop_unless_nohup_has_it_ignored(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(tmp_path, "none"))
    loaded = load_recipe(str(recipe))
    before = signal.getsignal(signal.SIGHUP)
    try:
        for action, asks in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, action)
            assert (signal.SIGHUP in stop_signals(loaded.recipe)) == asks
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("handlers_put_back")
def test_a_signal_to_the_supervisor_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.launch.signals._SAME_SIGNAL", 0.0)
    requests, _ = requests_with_relay(tmp_path)
    requests.listen()
    signal.raise_signal(signal.SIGUSR2)
    requests.honour(Control(tmp_path), 0.0)
    assert requests.honoured == "SIGUSR2"


def test_a_path_with_a_byte_of_another_encoding_is_to_be_renamed() -> None:
    with pytest.raises(UnicodeEncodeError) as refused:
        os.fsdecode(b"/runs/\xfcber").encode()
    told = in_another_locale(refused.value)
    assert told == "'/runs/\\udcfcber': byte 0xfc of this path is not UTF-8; rename that file or folder"
