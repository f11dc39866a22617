"""The table at the end of a run."""

from __future__ import annotations

import re
import time
from pathlib import Path

from example_runs import training_run
from ledgerlab import Lab

from runner.ledger.events import FaultSeen
from runner.ledger.history import NS
from runner.ledger.writer import LedgerWriter
from runner.report.startup import startup_rows
from runner.report.summary import render
from runner.report.view import view_run


def example(folder: Path) -> Path:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=5, load=1)
    for step in (1, 2, 3):
        lab.step(step)
    lab.step(4, seconds=1.5, stalled=0.5)
    lab.save(4, stalled=0.5)
    lab.step(5)
    lab.fault(6, partial=0.4, detection=0.3, teardown=0.7)
    lab.begin("2", 4, startup=0.2, load=2, in_process=True)
    for step in (5, 6, 7):
        lab.step(step)
    lab.finish()
    lab.wait(1 / 3)
    lab.launched()
    return lab.write(folder)


def test_the_table_shows_steps_loss_faults_saves_and_both_goodputs(tmp_path: Path) -> None:
    text = render(example(tmp_path))
    assert "7 useful, 1 replayed" in text
    assert "loss              5.0000 at step 1 -> 0.7143 at step 7" in text
    assert re.search(
        r"exception on rank 1 at step 6 +inprocess +0\.30 s +0\.70 s +0\.20 s +2\.00 s +1\.00 s +4\.20 s"
        r" +1 +4 \(storage\)",
        text,
    )
    assert re.search(r"step 4 +async +0\.50 s +2\.00 s +1 MiB +committed", text)
    assert "training goodput" in text and "infra goodput" in text


def test_a_row_of_the_startup_table_adds_up_to_the_accounts_startup(tmp_path: Path) -> None:
    """What came before the processes of a life, a fork server's imports for one, has a column of its own."""
    lab = Lab()
    lab.launch()
    lab.wait(3)
    lab.begin("1", 0, startup=0.5, load=1)
    lab.step(1)
    lab.finish()
    lab.launched()
    view = view_run(lab.write(tmp_path))
    header, (row,) = startup_rows(view)
    seconds = {
        name: float(text.split()[0]) for name, text in zip(header, row, strict=True) if text.endswith(" s")
    }
    assert (seconds["launch"], seconds["process and imports"]) == (3.0, 0.5)
    assert seconds["start-up"] == 3.5 == view.goodput.split["startup"] / NS
    ahead = header[1 : header.index("start-up")]
    assert sum(seconds.get(name, 0.0) for name in ahead) == 3.5


def test_a_cause_that_does_not_fit_shows_where_it_was_cut(tmp_path: Path) -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=1)
    lab.step(1)
    lab.at(-1, FaultSeen("launcher", "rank 1 after step 1: ValueError: no such shard in the index"))
    lab.launched(1)
    assert "  rank 1 after step 1: ValueError: no such shard in the i...  " in render(lab.write(tmp_path))


def test_the_split_sums_to_one_hundred_per_cent_as_printed(tmp_path: Path) -> None:
    text = render(example(tmp_path))
    shares = [round(100 * float(x)) for x in re.findall(r"(\d+\.\d\d) %", text.split("wall time went")[1])]
    assert sum(shares[:-1]) == shares[-1] == 100_00


def test_a_run_that_just_began_and_one_without_steps_have_a_summary_too(tmp_path: Path) -> None:
    LedgerWriter(tmp_path, rank=0, life="1")
    assert "nothing recorded yet" in render(tmp_path)
    lab = Lab()
    lab.launch()
    lab.wait(2)
    lab.launched(2)
    text = render(lab.write(tmp_path / "other"))
    assert "ended with exit code 2" in text and "Faults: none" in text


def test_the_cost_of_a_summary_grows_with_the_run_not_with_its_square(tmp_path: Path) -> None:
    costs = []
    for steps in (1000, 8000):
        run = training_run(tmp_path / str(steps), ranks=2, steps=steps, every=steps // 10, faults=3)
        begin = time.thread_time()
        assert f"{steps} useful" in render(run)
        costs.append(time.thread_time() - begin)
    assert costs[1] < 8 * 2.5 * costs[0] + 1


def test_what_has_not_begun_after_a_fault_that_ended_the_run_is_no_zero(tmp_path: Path) -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    for step in (1, 2):
        lab.step(step)
    lab.wait(3)
    lab.at(-1, FaultSeen("none", "rank 1 died (SIGKILL)"))
    lab.wait(1)
    lab.launched(1)
    (row,) = [line for line in render(lab.write(tmp_path)).splitlines() if "rank 1 died" in line]
    assert row.split()[-6:] == ["-"] * 6, "start-up, load, first step, recovery, steps lost, resumed after"
