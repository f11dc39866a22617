"""The supervisor with real launchers: one exit code, one line, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from tinylab import expected

from runner.checkpoint.record import CommitRecord, write_record
from runner.checkpoint.shm import arena_path
from runner.errors import ExitCode
from runner.faults.records import read_records
from runner.faults.schedule import post_mortem
from runner.ledger.events import FaultSeen, SaveCommitted
from runner.ledger.finish import close_run
from runner.ledger.reader import read_run
from runner.ledger.writer import LedgerWriter
from runner.system.process import children_by_parent


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


LAYERS = ["none", "inprocess", "ft_launcher", "ft_launcher+inprocess"]


def verdict(err: str) -> str:
    """The first line that says how the command ended: what was mended before is told ahead of it."""
    return next(line for line in err.splitlines() if "; restart " not in line)


def test_finished_run_exits_0_and_a_second_time_rewrites_nothing(supervised, temporary):
    first = supervised("none", env={"TMPDIR": str(temporary)})
    code, out, err = first.wait()
    assert (code, err) == (0, "")
    assert list(temporary.iterdir()) == []
    assert "training goodput" in out.lower()
    checkpoint = first.run / "checkpoints/step-12"
    write_record(checkpoint, CommitRecord(12, 2, "", 0.0, "sync", {}, [], {}))
    before = {path: path.stat().st_mtime_ns for path in first.run.rglob("*") if path.is_file()}
    code, out, err = supervised("none").wait()
    assert code == 0
    assert "finished already" in err
    after = {path: path.stat().st_mtime_ns for path in first.run.rglob("*") if path.is_file()}
    assert {path for path in after if before.get(path) != after[path]} <= {first.run / ".lock-node0"}
    recipe = first.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("global_batch_size: 2", "global_batch_size: 2\n  seed: 7"))
    code, out, err = supervised("none").wait()
    assert code == 0 and "this was not trained: training.seed: 0 -> 7; for another run name another" in err
    shutil.rmtree(first.run / "checkpoints")
    with contextlib.closing(LedgerWriter(first.run, rank=0, life="saves")) as writer:
        writer.record(SaveCommitted(12, 1, 0.0))
    ledger = {path: path.read_bytes() for path in (first.run / "ledger").iterdir()}
    for closed, steps, code, says in (
        (False, 12, ExitCode.NO_LOADABLE_CHECKPOINT, "holds no checkpoint, and the ledger of this run"),
        (True, 12, ExitCode.DONE, "finished already, nothing to do: measured; but the recipe is not the one"),
        (True, 13, ExitCode.BAD_RECIPE, "run: closed at step 12: measured; for another run name another"),
    ):
        if closed:
            close_run(first.run, "measured")
        recipe.write_text(recipe.read_text().replace("steps: 12", f"steps: {steps}"))
        ended, out, err = supervised("none").wait()
        assert ended == code and says in err
    assert ledger == {path: path.read_bytes() for path in (first.run / "ledger").iterdir()}


def test_fault_without_recovery_ends_with_1_and_the_same_command_resumes(supervised):
    run = supervised("none", "5:1:exception")
    code, _, err = run.wait()
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == (
        "nvrx-run: rank 1 after step 4: ValueError: exception at step 5; the same command resumes the run"
    )
    assert len(lines) == 2
    assert "Traceback" not in err
    said = [path.name.rpartition("-")[2] for path in run.run.glob("last-words-*")]
    assert said == ["rank1"], "there is time for a last word, for the rank whose fault it is"
    assert supervised("none", "5:1:exception").wait()[0] == 0
    assert (run.run / "state.json").read_text() == str(expected())


def test_killed_worker_is_named(supervised):
    code, _, err = supervised("none", "5:1:sigkill").wait()
    assert code == 1
    assert err.startswith("nvrx-run: rank 1 died (SIGKILL) after step 4; the same command resumes the run")


@pytest.mark.parametrize("layer", ["ft_launcher+inprocess", *map(slow, ["none", "inprocess", "ft_launcher"])])
def test_bad_input_on_one_rank_ends_with_2_and_no_restart(supervised, layer):
    began = time.monotonic()
    run = supervised(layer, "1:1:input")
    code, _, err = run.wait()
    assert len(list((run.run / "lives").iterdir())) == 2
    assert code == 2
    assert verdict(err) == "nvrx-run: dataset.path: /nowhere does not exist"
    assert time.monotonic() - began < 30


def test_verbose_shows_the_traceback(supervised):
    code, _, err = supervised("none", "5:1:exception", verbose=True).wait()
    assert code == 1
    assert "Traceback" in err
    assert "in fire" in err


@pytest.mark.parametrize("layer", ["ft_launcher", slow("inprocess")])
def test_same_exception_at_the_same_step_twice_is_no_progress(supervised, layer):
    run = supervised(layer, "5:1:bug")
    code, _, err = run.wait()
    assert code == 12
    assert verdict(err).startswith(
        "nvrx-run: no progress: rank 1 after step 4: ValueError: bug at step 5; the fault before it was the same"
    )
    said = [path.name for path in run.run.glob("last-words-*")]
    if layer == "ft_launcher":  # which has mended the first
        assert len(said) == 1 and said[0].endswith("-rank1")
    else:
        assert not said


@pytest.mark.parametrize(
    ("layer", "changes"),
    [
        ("inprocess", {"inprocess": {"max_restarts": 1}}),
        slow("ft_launcher", {"ft_launcher": {"max_restarts": 1}}),
    ],
)
def test_restart_budget(supervised, layer, changes):
    code, _, err = supervised(layer, "3:1:exception,5:0:exception", **changes).wait()
    assert code == 11, err
    assert re.search(
        r"restarts .*are spent .*\(recovery\.\w+\.max_restarts\); "
        r"last fault: rank 0 after step 4: ValueError: exception at step 5$",
        verdict(err),
    )


def test_sigint_to_a_rank_that_is_between_two_lives_breaks_into_neither(supervised):
    changes = {"startup_backoff": "2s"}
    run = supervised("inprocess", "0:1:exception", env={"TINY_START": "30"}, inprocess=changes)
    run.until(lambda: "waiting before this start" in run.log)
    (life,) = (run.run / "lives").glob("*-rank1")
    os.kill(int(life.read_text()), signal.SIGINT)
    code, _, err = run.wait()
    assert code == 0, err
    assert [record.what for record in read_records(run.run) if not record.consequence] == [
        "ValueError: exception at step 0"
    ]
    assert (run.run / "state.json").read_text() == str(expected())


@pytest.mark.parametrize(
    ("layer", "ends"), [("inprocess", True), slow("ft_launcher", True), slow("ft_launcher+inprocess", False)]
)
def test_restarts_in_quick_succession_have_a_budget_of_their_own(supervised, layer, ends):
    section = layer.rpartition("+")[2]
    window = {"window": {"restarts": 1, "time": "5m"}}
    run = supervised(layer, "3:1:exception,5:0:exception", **{section: window})
    code, _, err = run.wait()
    if ends:
        assert code == 11, err
        assert f"2 restarts within 300 s (recovery.{section}.window allows 1)" in err
        assert verdict(err).endswith("; last fault: rank 0 after step 4: ValueError: exception at step 5")
    else:  # in place too often: new processes, with a budget of their own
        assert code == 0, err
        assert (run.run / "state.json").read_text() == str(expected())
        assert len({path.read_text() for path in (run.run / "lives").iterdir()}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher"])
def test_only_restarts_after_a_failed_start_wait_and_each_longer(supervised, layer):
    faults = "1:0:exception,1:0:exit_1,6:0:exception"
    run = supervised(layer, faults, **{layer: {"startup_backoff": "500ms"}})
    code, _, err = run.wait()
    assert code == 0, err
    waits = re.findall(r"waiting before this start .*?seconds=([\d.]+)", run.log)
    assert sorted(map(float, waits)) == [0.5, 0.5, 1.0, 1.0]


ALL = True  # the signal reaches both processes of the command: a terminal's Ctrl-C or end, scancel, systemd


@pytest.mark.parametrize(
    ("layer", "number", "to_all"),
    [
        ("ft_launcher+inprocess", signal.SIGHUP, ALL),
        slow("none", signal.SIGUSR1, not ALL),
        slow("ft_launcher+inprocess", signal.SIGTERM, ALL),
        slow("none", signal.SIGTERM, not ALL),
        slow("none", signal.SIGINT, ALL),
        slow("inprocess", signal.SIGTERM, not ALL),
        slow("ft_launcher", signal.SIGTERM, not ALL),
    ],
)
def test_stop_signal_saves_and_resumes(supervised, layer, number, to_all):
    run = supervised(layer, env={"TINY_STEP": "0.2", "TINY_BEHIND": "1"})  # rank 0 ends later than its peer
    state = run.run / "state.json"
    run.until(state.exists)
    began = time.monotonic()
    (supervisor,) = children_by_parent()[run.process.pid]
    for pid in [run.process.pid, supervisor] if to_all else [run.process.pid]:
        os.kill(pid, number)
    code, _, err = run.wait()
    assert code == 14, err
    assert re.search(r"stopped after step \d+", err)
    assert time.monotonic() - began < 10
    said = re.sub(r"\x1b\[[0-9;]*m", "", run.log)
    assert re.search(r"\[info +\] worker ends", said) and "[error" not in said  # it was asked for
    assert "nothing left to do" not in said, "the workers were started once more"
    assert read_records(run.run) == []
    left = run.run / "faults/silent-rank00007-1.txt"  # as by a launch that was killed with all it had started
    left.parent.mkdir(exist_ok=True)
    left.touch()
    assert supervised(layer).wait()[0] == 0
    assert not left.exists()
    assert state.read_text() == str(expected())


def test_stop_before_the_first_step_is_honoured_at_its_end(supervised):
    """Also one that comes before anybody listens."""
    code, _, err = supervised("none", env={"TINY_STOP_AT_ONCE": "1"}).wait()
    assert code == 14, err
    assert "stopped after step 1" in err


def test_a_second_run_in_the_folder_is_refused_and_a_stop_that_takes_too_long_is_cut_short(supervised):
    run = supervised("none", "3:0:hang", stop_timeout="2s")
    run.until((run.run / "fired-3-0-hang").exists)
    code, _, err = supervised("none").wait()
    assert code == 2
    assert "is in use by another nvrx-run (process" in err
    run.process.terminate()
    code, _, err = run.wait()
    assert code == 1
    why = "did not stop within 2 s of SIGTERM (recovery.stop_timeout)"
    assert why in err
    seen = [r.event for r in read_run(run.run).records if isinstance(r.event, FaultSeen)]
    assert FaultSeen("launcher", why) in seen, "the account names the cause"


@pytest.mark.slow
def test_second_signal_stops_at_once(supervised):
    run = supervised("none", "3:0:hang")
    run.until((run.run / "fired-3-0-hang").exists)
    run.process.terminate()
    time.sleep(0.5)
    began = time.monotonic()
    run.process.terminate()
    code, _, err = run.wait()
    assert code == 1
    assert "stopped at once on a second signal" in err
    assert time.monotonic() - began < 5


@pytest.mark.slow  # by default in tests/e2e/test_fault_matrix.py
def test_frozen_rank_does_not_hold_up_the_end(supervised):
    """torchrun's SIGTERM does not reach a stopped process, and its patience is as long as a save."""
    began = time.monotonic()
    code, _, err = supervised("none", "4:1:sigstop", process_group_timeout="6s").wait()
    assert code == 1
    assert "rank 1" in err
    assert time.monotonic() - began < 60


def test_worker_that_dies_again_and_again_after_the_same_step_is_no_progress(supervised):
    code, _, err = supervised("ft_launcher", "5:1:sigkill!").wait(150)
    assert code == 12
    assert verdict(err) == "nvrx-run: no progress: rank 1 died 3 times in a row after step 4"


@pytest.mark.parametrize(
    "both", [True, slow(False)]
)  # `kill -9 %1` takes the whole command: nobody is left to clear up
@pytest.mark.parametrize("layer", ["ft_launcher+inprocess", *map(slow, LAYERS[:3])])
def test_nothing_survives_the_killed_supervisor(supervised, tmp_path, layer, both):
    temporary = (
        tmp_path / "temporary"
    )  # with too long a name for sockets, which stay there outside of our folder
    temporary.mkdir()
    run = supervised(layer, "3:0:hang", env={"TMPDIR": str(temporary)})
    run.until((run.run / "fired-3-0-hang").exists)
    for pid in [run.process.pid, *(children_by_parent()[run.process.pid] if both else [])]:
        os.kill(pid, signal.SIGKILL)
    run.wait()
    from leftovers import processes_of

    deadline = time.monotonic() + 10
    while processes_of(run.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(run.folder) == []
    if both:
        assert list(temporary.glob("nvrx-run-*"))
        assert supervised(layer, env={"TMPDIR": str(temporary)}).wait()[0] == 0
    assert not list(temporary.glob("nvrx-run-*"))


def test_shared_memory_goes_with_the_run_although_its_supervisor_was_killed(supervised):
    run = supervised("ft_launcher", "3:0:hang")
    run.until((run.run / "fired-3-0-hang").exists)
    run_id = json.loads((run.run / "run.json").read_text())["run_id"]
    arena = arena_path(run_id, 0)
    arena.write_bytes(b"what a worker would have left")
    try:
        (inner,) = children_by_parent()[run.process.pid]
        os.kill(inner, signal.SIGKILL)
        code, out, err = run.wait()
        assert code == 1
        says = "the supervisor was killed (SIGKILL), and its workers with it"
        assert err == f"nvrx-run: {says}; the same command resumes the run\n"
        assert "ended with exit code 1" in out
        assert f"   {says} after step 2" in post_mortem(run.run)
        assert not arena.exists()
    finally:
        arena.unlink(missing_ok=True)


def test_rank_0_speaks_on_the_terminal_and_the_launcher_in_a_file(supervised, temporary):
    run = supervised(
        "ft_launcher", env={"TINY_SAY": "hello from the training function", "TMPDIR": str(temporary)}
    )
    code, out, err = run.wait()
    assert (code, err) == (0, "")
    assert out.count("hello from the training function") == 1
    assert "[ft_launcher" not in out
    assert "[ft_launcher" in run.log


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher+inprocess"])
def test_a_rank_whose_monitor_process_does_not_come_is_killed_and_named(supervised, layer):
    env = {"TINY_STOPPED_MONITOR": "1"}
    run = supervised(layer, env=env, start_timeout="8s")
    code, _, err = run.wait()
    (cause,) = [record for record in read_records(run.run) if not record.consequence]
    assert (cause.kind, cause.rank) == ("hang", 1)
    if layer == "inprocess":
        assert code == 1
        assert "rank 1 hung in start-up (monitor): not done after 8 s (recovery.start_timeout)" in err
        code, _, err = supervised(layer, env=env).wait()
    assert code == 0, err
    assert (run.run / "state.json").read_text() == str(expected())


@pytest.mark.slow  # by default in tests/launch/test_thaw.py
@pytest.mark.parametrize("who", ["command", "supervisor", "launcher", "fork server", "client", "monitor"])
def test_a_process_that_is_no_rank_and_is_stopped_is_woken(supervised, who):
    run = supervised(
        "ft_launcher", env={"TINY_STEP": "1.5" if who == "command" else "0.1"}
    )  # the run needs no command
    run.until((run.run / "state.json").exists)
    (supervisor,) = children_by_parent()[run.process.pid]
    launcher, server = sorted(
        children_by_parent()[supervisor], key=lambda pid: b"--fork-server" in command(pid)
    )
    below = children_by_parent()[launcher]
    monitors = [pid for pid in below if command(pid) == command(launcher)]  # forked
    clients = [pid for pid in below if pid not in monitors]
    every = {
        "command": [run.process.pid],
        "supervisor": [supervisor],
        "launcher": [launcher],
        "fork server": [server],
    }
    pid = (every | {"client": clients, "monitor": monitors})[who][0]
    os.kill(pid, signal.SIGSTOP)
    code, _, err = run.wait()
    assert code == 0, err
    assert "was stopped (SIGSTOP) and is woken" in err
    assert (run.run / "state.json").read_text() == str(expected())


@pytest.mark.parametrize("layer", ["inprocess", *map(slow, ["none", "ft_launcher", "ft_launcher+inprocess"])])
def test_an_interrupt_to_a_single_rank_is_a_fault_of_that_rank_and_named_as_what_it_was(supervised, layer):
    run = supervised(layer, env={"TINY_STEP": "0.2"})
    run.until((run.run / "state.json").exists)
    (pid,) = [int(path.read_text()) for path in (run.run / "lives").iterdir() if path.name.endswith("rank1")]
    os.kill(pid, signal.SIGINT)
    code, _, err = run.wait()
    (cause,) = [record for record in read_records(run.run) if not record.consequence]
    assert (cause.kind, cause.rank, cause.what) == ("exception", 1, "WorkerExit: SIGINT during training")
    if layer == "none":
        assert code == 1 and f"nvrx-run: rank 1 after step {cause.step}: {cause.what}; the same" in err, err
    else:
        assert code == 0, err
        assert (run.run / "state.json").read_text() == str(expected())
        kept = len({path.read_text() for path in (run.run / "lives").iterdir()}) == 2
        assert kept == ("inprocess" in layer)


@pytest.mark.slow
def test_parts_of_the_run_that_are_removed_while_it_goes_on_change_no_code(supervised):
    run = supervised("none", env={"TINY_STEP": "0.2"})
    run.until((run.run / "state.json").exists)
    for name in ("logs", "ledger", "faults"):
        shutil.rmtree(run.run / name, ignore_errors=True)
    run.process.terminate()
    code, _, err = run.wait()
    assert code == 14 and "stopped after step" in err, err
    before = len(list((run.run / "lives").iterdir()))
    run = supervised("none", env={"TINY_STEP": "1"})
    run.until(lambda: len(list((run.run / "lives").iterdir())) > before)
    shutil.rmtree(run.run / "outcome")
    code, _, err = run.wait()
    assert code == 1, err
    assert err.startswith(f"nvrx-run: {run.run}/outcome: removed while the run went on; the same command"), (
        err
    )
    assert supervised("none").wait()[0] == 0


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("layer", ["inprocess", slow("ft_launcher+inprocess")])
@pytest.mark.parametrize("rank", [1, slow(0)])
@pytest.mark.parametrize("what", ["stuck", slow("frozen")])
def test_a_rank_that_hangs_in_the_end_of_nvrxs_wrapper_alone_is_named_and_the_run_is_done(
    supervised, layer, rank, what
):
    run = supervised(layer)
    run.run.mkdir()
    (run.run / f"end-{rank}").write_text(what)
    code, _, err = run.wait()
    assert code == 0, err
    died = r"nvrx-run: rank (\d) died \((SIGTERM|SIGKILL)\) in its own end; the run is done on it"
    named = [int(line[1]) for line in map(re.compile(died).match, err.splitlines()) if line]
    assert set(named) <= {rank} and (named or "was stopped (SIGSTOP) and is woken" in err), err
    assert read_records(run.run) == []
    assert (run.run / "state.json").read_text() == str(expected())
    assert (run.run / "finished.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["returns-frozen", "returns-stuck"])
def test_a_rank_that_hangs_before_all_have_returned_is_blamed_and_not_who_waits_for_it(
    supervised, rank, what
):
    run = supervised("inprocess")
    run.run.mkdir()
    (run.run / f"end-{rank}").write_text(what)
    code, _, err = run.wait()
    assert code == 1 and re.search(
        rf"^nvrx-run: rank {rank} .*the same command resumes", err, re.MULTILINE
    ), err
    assert f"   hang on rank {rank} after step 12" in post_mortem(run.run)
    (run.run / f"end-{rank}").unlink()
    assert supervised("inprocess").wait()[0] == 0


@pytest.mark.parametrize("layer", ["ft_launcher", *map(slow, ["none", "inprocess", "ft_launcher+inprocess"])])
@pytest.mark.parametrize("what", ["sigsegv", *map(slow, ["hang", "leave", "sigstop"])])
def test_a_rank_that_hangs_or_crashes_when_it_is_done_has_ended_well_and_is_named(supervised, layer, what):
    hung = "rank 1 hung in its own end: not gone after 6 s .*, and was killed; the run is done on it"
    said = {
        "sigsegv": r"rank 1 died \(SIGSEGV\) in its own end; the run is done on it",
        "sigstop": r"process \d+ .* was stopped \(SIGSTOP\) and is woken",
    }.get(what, hung)
    patience = {"ft_launcher": {"rank_heartbeat_timeout": "30s"}} if layer.startswith("ft_launcher") else {}
    run = supervised(layer, start_timeout="6s" if said == hung else "30s", **patience)
    run.run.mkdir()
    (run.run / "end-1").write_text(what)
    code, _, err = run.wait()
    assert code == 0, err
    assert re.search(f"^nvrx-run: {said}", err, re.MULTILINE), err
    assert (run.run / "state.json").read_text() == str(expected())
    assert (run.run / "finished.json").exists()
    assert len(list((run.run / "lives").iterdir())) == 2, "there was nothing to start again for"
    records = [(record.kind, record.rank) for record in read_records(run.run)]
    assert records == ([("hang", 1)] if said == hung else [])


@pytest.mark.slow
def test_a_rank_that_hangs_while_it_leaves_with_a_fault_is_killed_and_the_run_goes_on(supervised):
    """Its peers wait for it in a collective meanwhile, for as long as a heartbeat may take."""
    run = supervised(
        "ft_launcher",
        "5:1:exception",
        start_timeout="6s",
        process_group_timeout="70s",
        ft_launcher={"rank_heartbeat_timeout": "60s", "initial_rank_heartbeat_timeout": "60s"},
    )
    run.run.mkdir()
    (run.run / "end-1").write_text("hang")
    began = time.monotonic()
    code, _, err = run.wait()
    assert code == 0, err
    hung = "nvrx-run: rank 1 hung in its own end: not gone after 6 s (recovery.start_timeout), and was killed"
    assert {hung, hung + "; the run is done on it"} <= set(err.splitlines())
    assert time.monotonic() - began < 60
    assert (run.run / "state.json").read_text() == str(expected())
    causes = [record.what for record in read_records(run.run) if not record.consequence]
    assert causes[0] == "ValueError: exception at step 5" and len(causes) == 2
