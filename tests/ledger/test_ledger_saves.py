"""What saves and snapshots cost, each counted once."""

from __future__ import annotations

import pytest
from ledgerlab import Lab

from runner.ledger.events import SaveStarted, SnapshotTaken
from runner.ledger.reader import merge
from runner.ledger.saves import Snapshots, saves_of, snapshots_of


def test_what_a_save_waits_for_the_one_before_it_is_no_cost_of_snapshots() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    for step, stalled in ((2, 0.1), (4, 7.0), (6, 0.3)):
        lab.all(SnapshotTaken(step, stalled))
        if step == 4:
            lab.all(SaveStarted(step, "async", stalled))
    lab.begin("2", 4, startup=1, load=0, in_process=True)
    lab.all(SnapshotTaken(4, 0.2))  # the same step in another life: no save became of this one
    records = merge(lab.items)
    assert [save.stalled for save in saves_of(records)] == [7.0]
    snapshots = snapshots_of(records)
    assert snapshots == Snapshots(count=4, timed=3, stalled=pytest.approx(0.6))
    assert snapshots.mean == pytest.approx(0.2)
    assert Snapshots(count=3, timed=0, stalled=0.0).mean == 0.0
