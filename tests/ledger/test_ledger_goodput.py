"""The account of runs whose every second is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
from ledgerlab import EPOCH, Lab

from runner.ledger.events import FaultFired, FaultSeen, LifeEnded, LifeStarted, StepEnded, TeardownEnded
from runner.ledger.goodput import account
from runner.ledger.history import NS
from runner.ledger.reader import merge


def split_seconds(lab: Lab) -> dict[str, float]:
    goodput, _, _ = account(merge(lab.items))
    assert sum(goodput.split.values()) == goodput.wall
    return {kind: round(value / NS, 3) for kind, value in goodput.split.items() if value}


def a_run_with_one_soft_fault(lab: Lab) -> None:
    lab.launch()
    lab.begin("1", 0, startup=5, load=1)
    for step in (1, 2, 3):
        lab.step(step)
    lab.step(4, seconds=1.5, stalled=0.5)
    lab.save(4, stalled=0.5)
    lab.step(5)
    lab.step(6)
    lab.fault(7, partial=0.4, detection=0.3, teardown=0.7)
    lab.begin("2", 4, startup=0.2, load=2, in_process=True)
    for step in range(5, 11):
        lab.step(step)
    lab.finish()
    lab.wait(1.1)
    lab.launched()


@pytest.mark.parametrize("skew", [0.0, -137.25])
def test_every_second_of_a_run_with_a_soft_fault_is_accounted_for(skew: float) -> None:
    lab = Lab(ranks=4, skew=skew)
    a_run_with_one_soft_fault(lab)
    goodput, _, _ = account(merge(lab.items))
    assert split_seconds(lab) == {
        "useful": 10.0,
        "replayed": 2.4,
        "stall": 0.5,
        "detection": 0.3,
        "teardown": 1.8,
        "startup": 5.2,
        "load": 3.0,
    }
    (recovery,) = goodput.recoveries
    assert {k: round(v / NS, 3) for k, v in recovery.parts.items()} == {
        "detection": 0.3, "teardown": 0.7, "idle": 0.0, "startup": 0.2, "load": 2.0, "step": 1.0,
    }  # fmt: skip
    assert (recovery.by, recovery.lost, recovery.resumed, recovery.cause) == (
        "inprocess",
        2,
        4,
        "exception on rank 1",
    )
    assert goodput.infra == pytest.approx(1 - 3.2 / 23.2)
    assert (goodput.useful_steps, goodput.replayed_steps, goodput.useful_tokens) == (10, 2, 10_000)
    assert goodput.useful_tokens_per_s == pytest.approx(1000)


@pytest.mark.parametrize(
    ("kind", "rank_finishes", "detection"),
    [
        ("exception", [], 0.3),  # in the snapshot of a step that its peer finished
        ("loader_death", [], 0.3),
        ("loader_hang", [4, 5], 2.3),  # what was loaded ahead was still trained on
    ],
)
def test_a_fault_that_was_injected_into_a_step_that_peers_finished_is_the_cause(
    kind: str, rank_finishes: list[int], detection: float
) -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    for step in (1, 2, 3):
        lab.step(step)
    lab.wait(0.5)
    lab.at(1, FaultFired(0, 4, kind))
    lab.wait(0.5)
    lab.at(0, StepEnded(4, 1.0, 0.0, 1000, 1.0, 1e-3, 1.0))
    for step in rank_finishes:
        lab.at(1, StepEnded(step, 1.0, 0.0, 1000, 1.0, 1e-3, 1.0))
    lab.wait(detection)
    lab.at(1, FaultSeen("inprocess", "what it led to"))
    lab.wait(0.2)
    lab.all(TeardownEnded())
    lab.begin("2", 3, startup=0.1, load=0, in_process=True)
    for step in (4, 5, 6):
        lab.step(step)
    lab.finish()
    lab.launched()
    goodput, _, _ = account(merge(lab.items))
    (recovery,) = goodput.recoveries
    assert recovery.cause == f"{kind} on rank 1" and recovery.faults == ((0, 1, 4, kind),)
    assert recovery.parts["detection"] / NS == pytest.approx(detection)
    assert recovery.total / NS == pytest.approx(detection + 0.2 + 0.1 + 1.0)


def test_a_fault_that_was_survived_is_not_the_cause_of_a_later_one() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.at(1, FaultFired(0, 2, "hang"))  # of a bounded length
    for step in (2, 3):
        lab.step(step)
    lab.all(FaultSeen("inprocess", "something else"))
    lab.all(TeardownEnded())
    lab.begin("2", 3, startup=0.1, load=0, in_process=True)
    lab.step(4)
    lab.finish()
    lab.launched()
    assert [recovery.cause for recovery in account(merge(lab.items))[0].recoveries] == ["something else"]


def test_time_between_a_crash_and_the_next_command_is_idle_and_counts_against_infra_goodput() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=2, load=0)
    lab.step(1)
    lab.wait(0.5)
    lab.all(LifeEnded("error", 1, "boom"))
    lab.wait(0.25)
    lab.launched(1)
    lab.wait(10)
    lab.launch()
    lab.begin("2", 0, startup=3, load=0)
    lab.step(1)
    lab.finish()
    lab.launched()
    assert split_seconds(lab) == {
        "useful": 1.0,
        "replayed": 1.0,
        "detection": 0.5,
        "teardown": 0.25,
        "startup": 5.0,
        "idle": 10.0,
    }
    goodput, _, _ = account(merge(lab.items))
    assert goodput.restarts == {"command": 1}
    assert goodput.infra == pytest.approx(1 - 13.75 / 17.75)


@pytest.mark.parametrize(("reason", "code"), [("preempted", 14), ("refused", 2)])
def test_idle_after_a_clean_end_is_no_downtime(reason: Literal["preempted", "refused"], code: int) -> None:
    lab = Lab()
    for first in (1, 2):
        lab.launch()
        lab.begin(str(first), first - 1, startup=1, load=0)
        lab.step(first)
        lab.all(
            FaultSeen("inprocess", "stopped on request after step 1")
        )  # a layer may call any end of a life so
        lab.at(0, LifeEnded(reason, code))
        lab.at(
            1, LifeEnded(reason if first == 2 else "fault", code)
        )  # its peer was gone before it could say so
        lab.launched(code)
        lab.wait(5 if first == 1 else 0)
    goodput, _, _ = account(merge(lab.items))
    assert goodput.split["idle"] == 5 * NS
    assert goodput.infra == 1.0 and not goodput.recoveries


def test_a_respawn_that_only_the_launcher_saw_is_split_by_its_word() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.wait(0.4)
    lab.at(-1, FaultSeen("ft_launcher", "rank 1 died of signal 9"))
    lab.wait(1.6)
    lab.begin("2", 1, startup=7, load=1)
    lab.step(2)
    lab.finish()
    lab.launched()
    goodput, _, _ = account(merge(lab.items))
    (recovery,) = goodput.recoveries
    assert (recovery.by, recovery.cause) == ("launcher", "rank 1 died of signal 9")
    assert {k: round(v / NS, 3) for k, v in recovery.parts.items() if v} == {
        "detection": 0.4, "teardown": 1.6, "startup": 7.0, "load": 1.0, "step": 1.0,
    }  # fmt: skip


def test_a_death_that_the_launcher_saw_is_the_cause_not_what_it_did_to_the_peers() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.wait(0.2)
    lab.at(0, FaultSeen("ft_launcher", "RuntimeError: Connection closed by peer"))
    lab.wait(0.1)
    lab.at(-1, FaultSeen("launcher", "rank 1 died (SIGKILL)"))
    lab.begin("2", 1, startup=3, load=1)
    lab.step(2)
    lab.finish()
    lab.launched()
    (recovery,) = account(merge(lab.items))[0].recoveries
    assert recovery.cause == "rank 1 died (SIGKILL)"
    assert recovery.parts["detection"] == pytest.approx(0.2 * NS, abs=2)


@pytest.mark.parametrize("injected", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_step_that_a_frozen_rank_finishes_when_it_is_woken_to_be_killed_is_no_training(
    kept: bool, injected: bool
) -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.wait(0.25)
    if injected:
        lab.at(1, FaultFired(1, 2, "sigstop"))
        lab.wait(0.05)
    lab.frozen(10.0, finishes=2)
    lab.wait(1.5)
    lab.begin("2", 2 if kept else 1, startup=1, load=1)
    for step in (2, 3)[kept:]:
        lab.step(step)
    lab.finish()
    lab.launched()
    goodput, _, _ = account(merge(lab.items))
    (recovery,) = goodput.recoveries
    known = 0.05 if injected else 0.0
    assert {k: round(v / NS, 3) for k, v in recovery.parts.items() if v} == {
        "detection": 10.0 + known, "teardown": 1.5, "startup": 1.0, "load": 1.0, "step": 1.0,
    }  # fmt: skip
    split = {kind: round(value / NS, 3) for kind, value in goodput.split.items()}
    assert split["detection"] == 10.0 + known
    assert (split["useful"], split["replayed"]) == ((2.25, 0.0) if kept else (3.0, 0.25))
    assert (goodput.useful_steps, goodput.replayed_steps) == ((3, 0) if kept else (3, 1))


def test_steps_kept_but_never_recorded_count_as_useful() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.step(2)
    lab.fault(
        4, partial=1.5, detection=0.1, teardown=0.1
    )  # step 3 ended, but its record was lost with the process
    lab.begin("2", 3, startup=1, load=0, in_process=True)
    lab.step(4)
    lab.finish()
    lab.launched()
    assert split_seconds(lab)["useful"] == 4.0
    assert split_seconds(lab)["replayed"] == 0.5


def test_a_life_that_dies_before_its_first_step_belongs_to_the_recovery_before_it() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.fault(2, partial=0, detection=0.5, teardown=0.5)
    lab.life = "2"
    lab.all(LifeStarted(2, 1, 1_764_000_000.0 + lab.now, True))
    lab.wait(2)
    lab.all(FaultSeen("inprocess", "port taken"))
    lab.wait(1)
    lab.begin("3", 1, startup=1, load=0, in_process=True)
    lab.step(2)
    lab.finish()
    lab.launched()
    goodput, _, _ = account(merge(lab.items))
    first, second = goodput.recoveries
    assert first.total == 6 * NS and second.total == 3 * NS
    assert goodput.infra == pytest.approx(1 - 5 / 8)  # their downtimes overlap and count once


@pytest.mark.parametrize(("reason", "code"), [("finished", 0), ("preempted", 14)])
def test_a_fault_after_which_no_step_was_made_is_mended_once_the_state_is_there(
    reason: Literal["finished", "preempted"], code: int
) -> None:
    """A fault in the last save, or a stop right after a restart: the rest of the command is not the fault's."""
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.fault(1, partial=0, detection=0.5, teardown=0.5)
    lab.begin("2", 1, startup=1, load=1, in_process=True)
    lab.wait(2)  # for the last commit
    lab.all(LifeEnded(reason, code))
    lab.wait(3)
    lab.launched(code)
    goodput, _, _ = account(merge(lab.items))
    (recovery,) = goodput.recoveries
    assert recovery.finished
    assert {kind: time / NS for kind, time in recovery.parts.items() if time} == {
        "detection": 0.5, "teardown": 0.5, "startup": 1, "load": 1,
    }  # fmt: skip
    assert goodput.infra == pytest.approx(1 - 3 / 10)


def test_the_wait_for_the_last_commit_is_a_stall_but_no_loss_of_efficiency() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1, seconds=1.25, stalled=0.25)
    lab.step(2)
    lab.wait(4)
    lab.save(2, stalled=0)
    lab.finish()
    lab.launched()
    goodput, _, _ = account(merge(lab.items))
    assert goodput.split["stall"] == pytest.approx(4.25 * NS, abs=2)
    assert goodput.efficiency == pytest.approx(2 / 2.25)


def test_a_run_that_goes_on_ends_with_its_last_finished_step() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.step(2)
    goodput, _, _ = account(merge(lab.items))
    assert goodput.going_on and goodput.wall == 3 * NS and goodput.training == pytest.approx(2 / 3)


@pytest.mark.parametrize("code", [2, 10])
def test_a_refused_command_changes_nothing_of_the_account(code: int) -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    lab.step(1)
    lab.finish()
    lab.launched()
    before = account(merge(lab.items))
    lab.wait(60)
    lab.launch()
    lab.begin("2", 1, startup=5, load=0)
    lab.all(LifeEnded("refused", code, "training.steps: 1 is below the step that the run has reached"))
    lab.launched(code)
    assert account(merge(lab.items)) == before


def test_a_run_all_of_whose_commands_were_refused_is_accounted_for_all_the_same() -> None:
    lab = Lab()
    lab.launch()
    lab.wait(5)
    lab.launched(2)
    goodput, history, _ = account(merge(lab.items))
    assert goodput.wall == 5 * NS and history.launches[-1].exit_code == 2


def test_the_rank_that_had_a_fault_is_named_though_its_peer_felt_it_sooner() -> None:
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=1, load=0)
    for step in (1, 2):
        lab.step(step)
    lab.at(0, FaultSeen("inprocess", "RuntimeError: Connection closed by peer"))
    lab.wait(0.1)
    lab.at(1, FaultSeen("inprocess", "ValueError: no such shard", own=True))
    lab.all(TeardownEnded())
    lab.begin("2", 2, startup=0.1, load=0, in_process=True)
    lab.step(3)
    lab.finish()
    lab.launched()
    (recovery,) = account(merge(lab.items))[0].recoveries
    assert recovery.cause == "rank 1 after step 2: ValueError: no such shard"
    assert recovery.parts["detection"] == 0


@pytest.mark.parametrize("rank_goes_on", [False, True])
def test_the_time_in_which_a_command_was_stopped_as_a_whole_is_idle(rank_goes_on: bool) -> None:
    """Unless a worker recorded something meanwhile: then only the supervisor did not run."""
    lab = Lab()
    lab.launch()
    lab.begin("1", 0, startup=2, load=0)
    lab.step(1)
    if rank_goes_on:
        lab.step(2, seconds=4)
        lab.suspended(4, noted=8)
    else:
        lab.suspended(8)
        lab.step(2)
    lab.step(3)
    lab.finish()
    lab.launched()
    goodput, _, spans = account(merge(lab.items))
    expected = {"useful": 10, "startup": 2} if rank_goes_on else {"useful": 3, "startup": 2, "idle": 8}
    assert split_seconds(lab) == expected
    assert goodput.useful_steps == 3 and goodput.useful_tokens == 3000
    assert all(a.end == b.start for a, b in pairwise(spans))


def test_a_wall_clock_that_is_set_while_a_process_starts_moves_nothing() -> None:
    lab = Lab()
    lab.launch()
    lab.wait(1)
    lab.life = "1"
    lab.all(LifeStarted(2, 0, EPOCH + lab.now - 3600, in_process=False))
    lab.begin("1", 0, startup=1, load=1)
    lab.step(1)
    lab.finish()
    lab.launched()
    assert split_seconds(lab) == {"startup": 2, "load": 1, "useful": 1}
