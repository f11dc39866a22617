"""The advised intervals, checked against simulated runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from runner.ledger.interval import Costs, FaultRates, advise, daly, expected_goodput, young
from runner.ledger.simulate import simulate

SYNC = Costs(step=2.0, save=60.0, write=0.0, snapshot=0.0, soft_recovery=30.0, hard_recovery=120.0)
ASYNC = Costs(step=2.0, save=0.5, write=275.0, snapshot=0.05, soft_recovery=2.0, hard_recovery=60.0)
HOURLY = FaultRates(soft=2 * 3600, hard=2 * 3600)


def mean_goodput(costs: Costs, rates: FaultRates, every: int, snapshot_every: int | None) -> float:
    runs = [
        simulate(costs, rates, every=every, snapshot_every=snapshot_every, steps=500_000, seed=seed).goodput
        for seed in range(4)
    ]
    return sum(runs) / len(runs)


def test_young_and_daly_agree_where_a_save_is_cheap_and_part_where_it_is_not() -> None:
    assert daly(1, 1e6) == pytest.approx(young(1, 1e6), rel=1e-3)
    assert daly(100, 1000) == pytest.approx(math.sqrt(2e5) * (1 + math.sqrt(0.05) / 3 + 0.05 / 9) - 100)
    assert daly(500, 100) == 100


@pytest.mark.parametrize("hard", [1800.0, 6 * 3600.0, 86400.0])
def test_no_interval_beats_the_advised_one_by_more_than_half_a_per_cent(hard: float) -> None:
    rates = FaultRates(soft=math.inf, hard=hard)
    advice = advise(SYNC, rates)
    advised = mean_goodput(SYNC, rates, advice.every, None)
    rivals = [max(1, round(advice.every * factor)) for factor in (0.25, 0.5, 0.7, 1.4, 2, 4)]
    assert max(mean_goodput(SYNC, rates, rival, None) for rival in rivals) < advised + 0.005
    # and it matters: four times too often, or too seldom, is worse
    assert mean_goodput(SYNC, rates, rivals[0], None) < advised - 0.005
    assert mean_goodput(SYNC, rates, rivals[-1], None) < advised - 0.005


def test_two_levels_beat_each_alone_and_their_advice_stands_in_simulation() -> None:
    costs = replace(ASYNC, save=20.0, write=0.0, snapshot=0.4)
    advice = advise(costs, HOURLY)
    assert advice.snapshot_every is not None and advice.snapshot_every < advice.every
    both = mean_goodput(costs, HOURLY, advice.every, advice.snapshot_every)
    alone = advise(costs, HOURLY, snapshots=False)
    all_hard = FaultRates(soft=math.inf, hard=3600)
    assert both > mean_goodput(costs, all_hard, alone.every, None) + 0.01
    for factor in (0.3, 3):
        assert mean_goodput(costs, HOURLY, round(advice.every * factor), advice.snapshot_every) < both + 0.002
        other = max(1, round(advice.snapshot_every * factor))
        assert mean_goodput(costs, HOURLY, advice.every, other) < both + 0.002


def test_an_asynchronous_save_that_costs_nothing_is_repeated_as_often_as_it_can_be_written() -> None:
    advice = advise(ASYNC, HOURLY)
    assert advice.bound_by_write and advice.every == math.ceil(275 / 2)
    assert advice.snapshot_every == math.ceil(daly(0.05, 7200) / 2)


@pytest.mark.parametrize("costs", [SYNC, ASYNC], ids=["sync", "async"])
def test_the_expected_goodput_is_what_simulation_gives(costs: Costs) -> None:
    for rates in (HOURLY, FaultRates(soft=86400, hard=86400), FaultRates(soft=math.inf, hard=3600)):
        advice = advise(costs, rates)
        simulated = mean_goodput(costs, rates, advice.every, advice.snapshot_every)
        assert expected_goodput(costs, rates, advice.every, advice.snapshot_every) == pytest.approx(
            simulated, abs=0.015
        )
        assert advice.goodput == expected_goodput(costs, rates, advice.every, advice.snapshot_every)


def test_without_faults_nothing_is_lost_and_the_longest_interval_is_advised() -> None:
    never = FaultRates(soft=math.inf, hard=math.inf)
    advice = advise(SYNC, never, longest=1000)
    assert (advice.every, advice.snapshot_every) == (1000, None)
    run = simulate(SYNC, never, every=1000, snapshot_every=None, steps=10_000)
    assert run.wall == 10_000 * 2 + 10 * 60 and run.faults == 0


def test_a_run_that_cannot_advance_ends() -> None:
    run = simulate(SYNC, FaultRates(soft=math.inf, hard=100), every=1000, snapshot_every=None, steps=10_000)
    assert run.steps < 10_000 and run.goodput < 0.05


def test_a_cost_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"costs\.save: -1"):
        replace(SYNC, save=-1)
