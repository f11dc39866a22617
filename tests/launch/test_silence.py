"""Of several silent ranks, the one that does not wait for the others is the one that hangs."""

from __future__ import annotations

import os
import time

from runner.faults.records import read_records
from runner.launch.deaths import Deaths
from runner.launch.presence import WorkerSign
from runner.launch.silence import hung_ranks

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
