"""The writer and the reader, on a real file system with real processes."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_runs import training_run

from runner.errors import InputError
from runner.ledger.codec import Stamp, decode, decode_lines, encode
from runner.ledger.events import (
    FaultFired,
    Loaded,
    SaveCommitted,
    SaveFailed,
    SnapshotTaken,
    StepEnded,
    StepsRolled,
)
from runner.ledger.follow import Follower
from runner.ledger.goodput import account
from runner.ledger.history import NS
from runner.ledger.reader import RunLedger, merge, read_run
from runner.ledger.saves import newest_saved
from runner.ledger.writer import LedgerWriter
from runner.report.cli import main
from runner.report.summary import render_ledger


def step(number: int, *, loss: float = 1.0) -> StepEnded:
    return StepEnded(number, 0.1, 0.01, 4096, loss, 1e-3, 0.5)


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, rank=3, life="launch1.0")
    writer.record(Loaded(0, "fresh", 0.5))
    writer.begin_life("launch1.1/2", rank=2)
    writer.record(step(1))
    writer.sync()
    first, second = read_run(tmp_path).records
    assert (first.event, first.rank, first.life) == (Loaded(0, "fresh", 0.5), 3, "launch1.0")
    assert (second.event, second.rank, second.life) == (step(1), 2, "launch1.1")
    assert first.stamp.pid == os.getpid() and first.stamp.m <= second.stamp.m
    assert abs(second.at / NS - time.time()) < 5


def test_an_event_that_is_recorded_late_stands_where_it_happened(tmp_path: Path) -> None:
    """As the step before a hang, which nobody looked at meanwhile: the hang must not count as a part of it."""
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    writer.record(FaultFired(0, 2, "hang"))
    writer.record(step(1), ago=5.0)
    ended, fired = read_run(tmp_path).records
    assert (ended.event, fired.event) == (step(1), FaultFired(0, 2, "hang"))
    assert (fired.at - ended.at) / NS == pytest.approx(5.0, abs=1.0)


def test_lines_are_strict_json_even_for_a_diverged_loss(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    writer.record(step(1, loss=math.nan))
    writer.record(step(2, loss=-math.inf))
    assert b'"loss":"NaN"' in writer.path.read_bytes()
    losses = [r.event.loss for r in read_run(tmp_path).records if isinstance(r.event, StepEnded)]
    assert math.isnan(losses[0]) and losses[1] == -math.inf


def test_a_process_killed_in_the_middle_of_writing_leaves_a_readable_ledger(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runner.ledger.writer import LedgerWriter;"
        "from runner.ledger.events import SnapshotTaken; w = LedgerWriter(Path(sys.argv[1]), rank=0, life='1')\n"
        "i = 0\nwhile True:\n    i += 1\n    w.record(SnapshotTaken(i, 0.0))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("ledger/*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    steps = [r.event.step for r in read_run(tmp_path).records if isinstance(r.event, SnapshotTaken)]
    assert steps == list(range(1, len(steps) + 1)) and steps


def test_torn_and_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    for i in (1, 2, 3):
        writer.record(step(i))
    data = writer.path.read_bytes()
    lines = data.splitlines(keepends=True)
    writer.path.write_bytes(
        lines[0] + b"\x00\xff garbage\n" + b'{"kind":"Unheard","t":1}\n' + lines[1] + lines[2][:-20]
    )
    ledger = read_run(tmp_path)
    assert [r.event for r in ledger.records] == [step(1), step(2)]
    assert (ledger.unreadable, ledger.unknown) == (2, 1)


ODD: list[object] = [
    None,
    -1,
    1e308,
    math.nan,
    math.inf,
    -(10**30),
    10**30,
    10**400,
    "",
    [],
    {},
    True,
    "\ud800",
    [1],
    {"a": 1},
]


def test_a_line_with_any_value_in_any_field_is_an_event_that_can_be_accounted_or_is_left_out(
    tmp_path: Path,
) -> None:
    folder = training_run(tmp_path, steps=8, every=4, faults=1, ranks=2)
    lines = [line for path in (folder / "ledger").iterdir() for line in path.read_bytes().splitlines()]
    of_each_kind = {json.loads(line)["kind"]: json.loads(line) for line in lines}
    assert len(of_each_kind) >= 12
    sound = decode_lines(lines).items
    taken = 0
    for kind, data in of_each_kind.items():
        for name in data:
            for value in ODD:
                changed = json.dumps({**data, name: value}).encode()
                read = decode_lines([changed])
                assert len(read.items) + read.unreadable + read.unknown == 1
                if read.items:
                    taken += 1
                    ledger = RunLedger(folder, merge([*sound, *read.items]), read.unreadable, read.unknown)
                    assert render_ledger(ledger).encode(), (kind, name, value)
    assert taken > 100
    for line in (b"[" * 100_000, b"1e999", b"9" * 5000, b'{"kind": []}', b"null"):
        assert decode_lines([line]).unreadable == 1


def test_a_path_that_is_no_text_can_be_printed() -> None:
    stamp = Stamp(1.0, 1.0, "n", 0, "1", 7)
    read = decode(encode(SaveFailed(4, "/runs/\udcff/step-4", "full"), stamp))
    assert read is not None and read[0] == SaveFailed(4, "/runs/\\udcff/step-4", "full")


def test_a_lost_disk_is_told_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "run"
    blocked.write_text("a file where the folder should be")
    with caplog.at_level(logging.ERROR):
        writer = LedgerWriter(blocked, rank=0, life="1")
        for i in range(100):
            writer.record(step(i))
        writer.sync()
    assert len(caplog.records) == 1
    assert "ledger cannot be written" in caplog.text and str(blocked) in caplog.text


def test_a_disk_that_is_full_for_a_while_costs_only_the_lines_of_that_while(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from runner.ledger.writer import LedgerWriter
from runner.ledger.events import SnapshotTaken
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
w = LedgerWriter(Path(sys.argv[1]), rank=0, life='1')
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for i in range(10): w.record(SnapshotTaken(i, 0.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (w.path.stat().st_size + 40, hard))
for i in range(10, 20): w.record(SnapshotTaken(i, 0.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for i in range(20, 30): w.record(SnapshotTaken(i, 0.0))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    ledger = read_run(tmp_path)
    steps = [r.event.step for r in ledger.records if isinstance(r.event, SnapshotTaken)]
    assert steps == [*range(10), *range(20, 30)]
    assert [r.event.count for r in ledger.records if hasattr(r.event, "count")] == [10]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    writer.record(step(1))
    pid = os.fork()
    if pid == 0:
        writer.record(step(2))
        os._exit(0)
    os.waitpid(pid, 0)
    writer.record(step(3))
    assert len(list(tmp_path.glob("ledger/*.jsonl"))) == 2
    assert {r.stamp.pid for r in read_run(tmp_path).records} == {os.getpid(), pid}


def test_a_long_run_stays_small_and_its_account_stays_true(tmp_path: Path) -> None:
    limit = 64 << 10
    writer = LedgerWriter(tmp_path, rank=0, life="1", segment_bytes=limit)
    count = 20_000
    for i in range(1, count + 1):
        writer.record(step(i, loss=10.0 / i))
        if i % 2 == 0:
            writer.record(SnapshotTaken(i, 0.0))
        if i == 700:
            writer.record(FaultFired(1, 701, "exception"))
    size = sum(path.stat().st_size for path in tmp_path.glob("ledger/*"))
    assert size < 4 * limit
    ledger = read_run(tmp_path)
    covered = 0
    for r in ledger.records:
        e = r.event
        if isinstance(e, StepsRolled):
            assert e.first == covered + 1
            covered = e.last
        elif isinstance(e, StepEnded):
            assert e.step == covered + 1
            covered = e.step
    assert covered == count
    goodput, _, _ = account(ledger.records)
    assert goodput.useful_steps == count and goodput.useful_tokens == count * 4096
    assert FaultFired(1, 701, "exception") in [r.event for r in ledger.records]


def test_recording_a_step_takes_well_under_a_thousandth_of_a_step_of_a_tenth_of_a_second(
    tmp_path: Path,
) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    costs = []
    for i in range(2000):
        begin = time.thread_time()  # other programs of the machine must not decide this test
        writer.record(step(i))
        costs.append(time.thread_time() - begin)
    assert sum(costs) / len(costs) < 100e-6


def test_what_is_no_file_of_a_ledger_keeps_nobody_from_reading_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LedgerWriter(tmp_path, rank=0, life="1")
    writer.record(SaveCommitted(4, 100, 1.0))
    folder = tmp_path / "ledger"
    (folder / "rank-00001.000.jsonl").mkdir()
    os.mkfifo(folder / "rank-00002.000.jsonl")
    (folder / "rank-00003.000.jsonl").symlink_to("nowhere")
    (folder / "notes.jsonl").write_text("by hand\n")
    ledger = read_run(tmp_path)
    assert (len(ledger.records), ledger.unreadable) == (1, 1)
    assert newest_saved(tmp_path) == 4
    assert len(Follower(tmp_path).poll()) == 1

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"nvrx-report: {folder}/") and error.endswith("jsonl: Permission denied\n")


def test_a_folder_without_a_ledger_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ledger"):
        read_run(tmp_path)
