"""Of several silent ranks, the one that does not wait for the others is the one that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from runner.control.signs import WorkerSign
from runner.control.silence import (
    EmptyStacks,
    announce,
    hung_ranks,
    mark_frozen,
    remove_leftover_stacks,
    take_mark_back,
)
from runner.faults.records import read_records
from runner.launch.watch.deaths import Deaths

WAITS = """Timeout (0:00:09)!
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007f02 (most recent call first):
  File "/site-packages/torch/_ops.py", line 1279 in __call__
  File "/site-packages/torch/distributed/_functional_collectives.py", line 142 in wait_tensor
  File "/site-packages/runner/train/loop.py", line 83 in run
"""
HANGS = WAITS.replace(
    '  File "/site-packages/torch/_ops.py", line 1279 in __call__\n'
    '  File "/site-packages/torch/distributed/_functional_collectives.py", line 142 in wait_tensor\n',
    '  File "/site-packages/runner/faults/injector.py", line 131 in _native_hang\n',
)


def test_hung_rank_is_told_from_waiting_ones(tmp_path):
    folder = tmp_path / "faults"
    folder.mkdir()
    (folder / "silent-rank00000-1.txt").write_text(HANGS)
    (folder / "silent-rank00001-1.txt").write_text(WAITS)
    (folder / "silent-rank00002-1.txt").write_text("")
    old = folder / "silent-rank00003-1.txt"
    old.write_text(HANGS)
    os.utime(old, (time.time() - 100, time.time() - 100))
    assert [silent.rank for silent in hung_ranks(tmp_path, within=30, before=time.time())] == [0]


def test_what_a_hung_rank_waited_for_is_told_where_it_was_a_data_worker(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    path = tmp_path / "faults" / "silent-rank00000-1.txt"
    sign = WorkerSign(pid=41, rank=0, local_rank=0, restart=0, attempt="a", step=4)
    for place, told in (("faults/injector.py", ","), ("train/data/watch.py", ", waiting for a data worker,")):
        path.write_text(HANGS.replace("faults/injector.py", place))
        deaths = Deaths(tmp_path / "launcher.log", tmp_path, "ft_launcher", silence=30.0)
        death = deaths.add(sign, [])
        assert death is not None
        deaths.settle(finally_=True)
        assert str(death) == f"rank 0 hung{told} and was stopped"


def test_where_all_that_wrote_did_wait_the_one_that_wrote_nothing_is_frozen(tmp_path):
    folder = tmp_path / "faults"
    folder.mkdir()
    now = int(time.time() * 1000)
    (folder / f"silent-rank00000-{now - 20_000}.txt").write_text("")
    (folder / f"silent-rank00001-{now - 20_000}.txt").write_text(WAITS)
    for rank in (0, 1):  # an earlier start, killed, and the next one
        (folder / f"silent-rank0000{rank}-{now - 90_000}.txt").write_text("")
        (folder / f"silent-rank0000{rank}-{now + 2_000}.txt").write_text("")
    assert [silent.rank for silent in hung_ranks(tmp_path, within=30, before=now / 1000)] == [0]
    (folder / f"silent-rank00001-{now - 20_000}.txt").write_text("")
    assert hung_ranks(tmp_path, within=30, before=now / 1000) == [], (
        "nobody was silent: a kill of another kind"
    )


def test_a_rank_that_was_frozen_is_named_whatever_it_writes_when_it_is_woken_to_be_killed(tmp_path):
    """Its supervisor has noted it where those of other nodes read it, too; a rank that went on is frozen no more."""
    folder = tmp_path / "faults"
    folder.mkdir()
    now = time.time()
    ours = [folder / f"silent-rank0000{rank}-{int(now * 1000) - 20_000}.txt" for rank in (0, 1)]
    announce(tmp_path, ours[1])
    stacks = ours[1].open("a")  # as a rank has it, from the start of its life
    mark_frozen(tmp_path, os.getpid(), now - 12)
    for woken in (WAITS, HANGS):
        stacks.write(woken)
        stacks.flush()
        ours[0].write_text(HANGS)
        (hung,) = hung_ranks(tmp_path, within=30, before=now)
        assert hung.rank == 1 and hung.frozen_since == round(now - 12, 3) and woken in hung.stacks
    take_mark_back(tmp_path, os.getpid())
    assert [silent.rank for silent in hung_ranks(tmp_path, within=30, before=now)] == [0]
    stacks.close()
    ours[1].unlink()
    mark_frozen(tmp_path, os.getpid(), now)
    assert not ours[1].exists(), "its life has ended, and its file with it"
    mark_frozen(tmp_path, 1, now)  # under a layer without such files


def test_an_empty_file_goes_once_nobody_asks_any_more_whether_its_rank_was_frozen(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from runner.control.silence import announce\n"
        "announce(Path(sys.argv[1]), Path(sys.argv[2])); Path(sys.argv[2]).touch(); print(flush=True); input()"
    )
    stacks = EmptyStacks(tmp_path)
    stacks.remove(0.0)  # no worker has come so far
    frozen, hung = tmp_path / "silent-rank00000-5.txt", tmp_path / "silent-rank00001-5.txt"
    workers = []
    for path in (frozen, hung):
        command = [sys.executable, "-c", program, str(tmp_path), str(path)]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert workers[-1].stdout is not None and workers[-1].stdout.readline()
    hung.write_text(HANGS)
    stacks.remove(0.0)
    stacks.remove(60.0)
    assert frozen.exists(), "it may still be written to"
    for worker in workers:
        worker.kill()
        worker.communicate()
    stacks.remove(100.0)
    stacks.remove(109.0)
    assert frozen.exists()
    stacks.remove(111.0)
    assert hung.exists() and not frozen.exists()
    frozen.touch()
    stacks.remove(112.0, all_gone=True)
    assert frozen.exists(), "whose it is nobody has said"


def test_at_the_end_no_empty_file_is_left(tmp_path: Path) -> None:
    (tmp_path / "silent").mkdir()
    ours, cut_off = tmp_path / "silent-rank00000-5.txt", tmp_path / "silent/2"
    ours.touch()
    (tmp_path / "silent/1").write_text(str(ours))
    cut_off.touch()  # killed while it announced its file
    EmptyStacks(tmp_path).remove(0.0, all_gone=True)
    assert not ours.exists() and not cut_off.exists()


def test_what_a_killed_launch_left_empty_goes_with_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "faults"
    folder.mkdir()
    written = {
        "silent-rank00001-5.txt": HANGS,
        "silent-rank00000-5.txt": "",
        "silent-rank.txt": "",
        "mine.txt": "",
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    remove_leftover_stacks(tmp_path)
    assert {path.name for path in folder.iterdir()} == written.keys() - {"silent-rank00000-5.txt"}


def test_a_launcher_that_is_late_to_say_how_a_worker_ended_does_not_shift_the_blame(tmp_path):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "silent-rank00000-1.txt").write_text(HANGS)
    (tmp_path / "faults" / "silent-rank00001-1.txt").write_text(WAITS)
    log = tmp_path / "launcher.log"
    log.write_text("")
    deaths = Deaths(log, tmp_path, "ft_launcher", silence=30)
    deaths.add(WorkerSign(pid=1, rank=1, local_rank=1, restart=0, attempt="a", step=6), [])
    deaths.settle(finally_=True)
    (record,) = read_records(tmp_path)
    assert (record.kind, record.rank, record.step) == ("hang", 0, 6)
    assert "_native_hang" in record.stacks


def test_how_a_worker_ended_is_said_in_the_end_however_late_the_launcher_says_it(tmp_path):
    log = tmp_path / "launcher.log"
    log.write_text("")
    deaths = Deaths(log, tmp_path, "none")
    death = deaths.add(WorkerSign(pid=1, rank=1, local_rank=1, restart=0, attempt="a", step=4), [])
    death.seen -= 60
    deaths.settle()
    assert death.recorded and str(death) == "rank 1 died"
    log.write_text("failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: nvrx-worker\n")
    deaths.settle(finally_=True)
    assert str(death) == "rank 1 died (SIGKILL)"
