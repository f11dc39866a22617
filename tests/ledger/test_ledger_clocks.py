"""Clocks of several nodes, compared over a real store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from ledgerlab import Lab

from runner.ledger import clocks
from runner.ledger.clocks import NodePlace, exchange_clocks
from runner.ledger.codec import Stamp
from runner.ledger.events import ClockSynced, LifeStarted
from runner.ledger.reader import merge

torch_distributed = pytest.importorskip("torch.distributed")


def test_offsets_are_found_over_a_tcp_store(free_port: int) -> None:
    count, offsets = 4, {1: 1234.5, 2: -0.25, 3: 0.0}
    found: dict[int, ClockSynced | None] = {}

    def node(number: int, clock: Callable[[], float]) -> None:
        store = torch_distributed.TCPStore(
            "127.0.0.1",
            free_port,
            is_master=number == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=20),
        )
        found[number] = exchange_clocks(store, NodePlace(number, count, f"node-{number}"), clock=clock)
        done.wait(20)  # the master must outlive the others

    done = threading.Event()
    threads = [threading.Thread(target=node, args=(0, time.monotonic))]
    threads += [
        threading.Thread(target=node, args=(n, lambda shift=shift: time.monotonic() - shift))  # type: ignore[misc]
        for n, shift in offsets.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join(20)
    assert found.pop(0) is None
    for number, offset in offsets.items():
        synced = found[number]
        assert synced is not None and synced.reference == "node-0"
        assert abs(synced.offset - offset) <= synced.uncertainty + 1e-3 < 0.2


def test_a_node_that_does_not_answer_costs_a_warning_and_a_bounded_wait(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "PATIENCE", timedelta(seconds=0.2))
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert exchange_clocks(torch_distributed.HashStore(), NodePlace(0, 2, "a")) is None
    assert time.monotonic() - began < 5 and "clocks of the nodes were not compared" in caplog.text


def test_one_node_and_very_many_exchange_nothing() -> None:
    store = torch_distributed.HashStore()
    assert exchange_clocks(store, NodePlace(0, 1, "a")) is None
    assert exchange_clocks(store, NodePlace(5, 2000, "a")) is None
    assert store.num_keys() == 0


@pytest.mark.parametrize("skew", [-3600.0, 0.5, 86400.0])
def test_a_measured_offset_orders_events_of_nodes_that_never_made_a_step_together(skew: float) -> None:
    lab = Lab(ranks=2, skew=skew)
    lab.launch()
    lab.life = "1"
    lab.at(
        1, ClockSynced("node-a", offset=-5000.0, uncertainty=0.001)
    )  # node b's monotonic clock is 5000 s ahead
    for rank in (0, 1):
        lab.wait(0.5)
        lab.at(rank, LifeStarted(2, 0, 0.0, False))
    started = [record for record in merge(lab.items) if isinstance(record.event, LifeStarted)]
    assert [record.rank for record in started] == [0, 1]
    assert started[1].at - started[0].at == pytest.approx(0.5e9, abs=1e6)


def test_a_wall_clock_that_is_set_in_the_middle_moves_nothing() -> None:
    lab = Lab(ranks=1)
    lab.launch()
    lab.begin("1", 0, startup=1, load=1)
    for step in range(1, 21):
        lab.step(step)
    moved = [
        (event, Stamp(s.t + (7200 if n > 18 else 0), s.m, s.node, s.rank, s.life, s.pid))
        for n, (event, s) in enumerate(lab.items)
    ]
    straight, bent = merge(lab.items), merge(moved)
    assert [a.at - straight[0].at for a in straight] == [b.at - bent[0].at for b in bent]
