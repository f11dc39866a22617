"""A rank is slow by its own work, not by the time of its steps, which all ranks share."""

from __future__ import annotations

from runner.ledger.codec import Record, Stamp
from runner.ledger.events import PaceMeasured
from runner.ledger.stragglers import Straggler, slow_ranks, stragglers_of


def measured(rank: int, last: int, own: float, life: str = "a", computed: float | None = None) -> Record:
    stamp = Stamp(t=1.0, m=1.0, node="n", rank=rank, life=f"{life}/{rank}", pid=rank)
    return Record(PaceMeasured(last - 9, last, 10.0, own, 1.5, computed), stamp, last)


def test_the_slow_rank_is_the_one_that_works_longer_than_the_median_of_the_others() -> None:
    assert [slow.rank for slow in slow_ranks({0: 4.0, 1: 9.0, 2: 4.2, 3: 3.9}, 10.0, 1.5)] == [1]
    assert slow_ranks({0: 4.0, 1: 5.9, 2: 4.2}, 10.0, 1.5) == []
    assert slow_ranks({0: 4.0}, 10.0, 1.5) == [], "with nobody to compare with"


def test_what_costs_the_others_next_to_nothing_is_not_named() -> None:
    assert slow_ranks({0: 0.01, 1: 0.05}, 10.0, 1.5) == []


def test_comparisons_of_a_run_are_counted_by_rank_the_slowest_first() -> None:
    records = [
        *(measured(0, 10, 4.0), measured(1, 10, 9.0), measured(2, 10, 4.0)),
        *(measured(0, 20, 4.0), measured(1, 20, 8.0), measured(2, 20, 7.0)),
        *(measured(0, 20, 7.0, "b"), measured(1, 20, 7.0, "b"), measured(2, 20, 7.0, "b")),
        measured(0, 30, 9.0, "b"),  # the others never said
    ]
    assert stragglers_of(records) == [Straggler(1, "host", 1, 3, 0.9, 0.4)]
    slower = [measured(0, 40, 2.0), measured(1, 40, 8.0), measured(2, 40, 2.0)]
    assert [(slow.rank, slow.slow, slow.compared) for slow in stragglers_of([*records, *slower])] == [
        (1, 2, 4)
    ]


def test_hosts_and_gpus_are_compared_each_with_their_like() -> None:
    slow_host = [measured(0, 10, 8.0, computed=3.0), measured(1, 10, 2.0, computed=3.0)]
    assert stragglers_of(slow_host) == [Straggler(0, "host", 1, 1, 0.8, 0.2)]
    slow_gpu = [measured(0, 10, 4.0, computed=4.0), measured(1, 10, 4.0, computed=9.0)]
    assert stragglers_of(slow_gpu) == [Straggler(1, "GPU", 1, 1, 0.9, 0.4)]


def test_gpus_are_not_compared_where_one_was_not_measured() -> None:
    assert stragglers_of([measured(0, 10, 4.0), measured(1, 10, 4.0, computed=9.0)]) == []
