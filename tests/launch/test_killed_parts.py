"""Somebody kills what ranks hang on, or what watches them: that is what is told, once, and no rank is blamed for it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from nvrx_releases import VERSIONS, release_environ
from tinylab import expected

from runner.faults.records import read_records
from runner.faults.schedule import post_mortem
from runner.ledger.events import FaultSeen
from runner.ledger.reader import read_run
from runner.system.process import children_by_parent


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


ENDED = "the launcher was ended by SIGTERM, and its workers with it"
LAYERS = ["none", "inprocess", "ft_launcher", "ft_launcher+inprocess"]


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("layer", "number", "says"),
    [
        ("ft_launcher+inprocess", signal.SIGTERM, ENDED),
        slow("none", signal.SIGTERM, ENDED),
        *(slow(layer, signal.SIGKILL, "the launcher was killed (SIGKILL)") for layer in LAYERS),
    ],
)
def test_a_signal_to_the_launcher_is_no_fault_of_a_rank(supervised, layer, number, says):
    run = supervised(layer, env={"TINY_STEP": "0.1"})
    run.until((run.run / "state.json").exists)
    (supervisor,) = children_by_parent()[run.process.pid]
    (launcher,) = (pid for pid in children_by_parent()[supervisor] if b"--log-dir=" in command(pid))
    os.kill(launcher, number)
    code, _, err = run.wait()
    assert code == 1 and err.startswith(f"nvrx-run: {says}; the same command resumes the run"), err
    assert f"   {says} after step" in post_mortem(run.run)
    told = [r.event for r in read_run(run.run).records if isinstance(r.event, FaultSeen) and r.rank < 0]
    assert told[-1] == FaultSeen("launcher", says), "the account names the cause"


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_a_killed_fork_server_is_no_fault_of_a_rank(supervised, layer):
    run = supervised(layer, env={"TINY_STEP": "0.1"})
    run.until((run.run / "state.json").exists)
    (supervisor,) = children_by_parent()[run.process.pid]
    # NVRx's monitors are forks of it, and orphans.
    server = min(pid for pid in children_by_parent()[supervisor] if b"--fork-server" in command(pid))
    os.kill(server, signal.SIGKILL)
    code, _, err = run.wait()
    says = "the fork server was killed (SIGKILL), and its workers with it"
    if layer.startswith("ft_launcher"):
        assert code == 0 and f"nvrx-run: {says}; restart 1 of " in err, err
    else:
        assert code == 1 and f"nvrx-run: {says}; the same command resumes the run\n" in err, err
        assert not re.search(r"rank \d", err)
        assert supervised(layer).wait()[0] == 0
    assert err.count("the fork server was killed") == 1
    assert [(record.rank, record.what) for record in read_records(run.run) if record.kind == "died"] == [
        (-1, says)
    ]
    assert "faults that happened (1)\n" in post_mortem(run.run)
    assert f"   {says} after step" in post_mortem(run.run)
    told = [r.event for r in read_run(run.run).records if isinstance(r.event, FaultSeen) and r.rank < 0]
    assert told[-1] == FaultSeen("launcher", says), "the account names the cause"
    assert (run.run / "state.json").read_text() == str(expected())


@pytest.mark.parametrize(("layer", "number"), [
    ("ft_launcher+inprocess", signal.SIGKILL),
    slow("inprocess", signal.SIGKILL),
    slow("inprocess", signal.SIGSTOP),
    slow("ft_launcher+inprocess", signal.SIGSTOP),
])  # fmt: skip
@pytest.mark.parametrize(("rank", "version"), [(1, None), *(slow(0, release) for release in VERSIONS)])
def test_a_monitor_process_of_nvrx_that_is_killed_or_stopped_is_named_and_mended(
    supervised, temporary, layer, number, rank, version
):
    killed = number == signal.SIGKILL
    run = supervised(
        layer,
        env=(release_environ(version) if version else {})
        | {"TINY_STEP": "0.3" if killed else "0.5", "TMPDIR": str(temporary)},
        steps=12 if killed else 20,
    )
    run.until((run.run / "state.json").exists)
    (worker,) = [
        path.read_text() for path in (run.run / "lives").iterdir() if path.name.endswith(f"rank{rank}")
    ]
    (file,) = temporary.glob(f"nvrx-run-*/monitors/{worker}")
    monitor = int(file.read_text())
    os.kill(monitor, number)
    code, _, err = run.wait()
    says = f"NVRx's monitor process of rank {rank} was killed (SIGKILL), which ended the rank"
    if not killed:
        assert code == 0 and f"NVRx's monitor process of rank {rank} (process {monitor})" in err, err
        assert "was stopped (SIGSTOP) and is woken" in err
        assert post_mortem(run.run) == "faults that happened: none"
        return
    (cause,) = [record for record in read_records(run.run) if not record.consequence]
    assert (cause.kind, cause.rank, cause.what) == ("died", rank, says)
    told = [
        r.event.reason for r in read_run(run.run).records if isinstance(r.event, FaultSeen) and r.rank < 0
    ]
    assert told == [f"{says} after step {cause.step}"], "the account names the cause"
    if layer == "inprocess":
        assert code == 1 and f"nvrx-run: {told[0]}; the same command resumes the run\n" in err, err
        assert supervised(layer).wait()[0] == 0
    else:
        assert code == 0 and f"nvrx-run: {told[0]}; restart 1 of " in err, err
    assert (run.run / "state.json").read_text() == str(expected())


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["ft_launcher", "ft_launcher+inprocess"])
def test_a_killed_monitor_ends_the_launch_that_makes_no_other_and_the_same_command_resumes(supervised, layer):
    run = supervised(layer, env={"TINY_STEP": "0.1"})
    run.until((run.run / "state.json").exists)
    (supervisor,) = children_by_parent()[run.process.pid]
    (launcher,) = [pid for pid in children_by_parent()[supervisor] if b"prompt_launcher" in command(pid)]
    monitors = [pid for pid in children_by_parent()[launcher] if command(pid) == command(launcher)]
    os.kill(monitors[0], signal.SIGKILL)
    began = time.monotonic()
    code, _, err = run.wait()
    assert code == 1, err
    assert re.search(
        r"^nvrx-run: the monitor of rank \d is gone, and ft_launcher makes no other", err, re.MULTILINE
    ), err
    assert time.monotonic() - began < 30
    said = post_mortem(run.run)
    assert "faults that happened (1)\n" in said and re.search(
        r"   died on rank \d .*: the monitor of rank \d", said
    )
    assert supervised(layer).wait()[0] == 0
    assert (run.run / "state.json").read_text() == str(expected())
