"""The schedule of injected faults is the same everywhere, possible, and hits every rank."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.faults.fired import FiredFaults
from runner.faults.records import FaultRecord, read_records, write_record
from runner.faults.schedule import post_mortem
from runner.recipe.fault_schedule import PlannedFault, fault_schedule
from runner.recipe.faults import FaultsSection, ScheduledFault


def test_schedule_of_a_seed_never_changes():
    """A run may be resumed after an update of the program: the remaining faults must be the same ones."""
    faults = FaultsSection(count=5, seed=42, types=("exception", "hang"), weights=(0.6, 0.4), after_step=10)
    assert fault_schedule(faults, steps=100, world_size=4) == GOLDEN


GOLDEN = (
    PlannedFault(0, 13, 0, "exception", name="step-13-exception"),
    PlannedFault(1, 14, 0, "hang", name="step-14-hang"),
    PlannedFault(2, 30, 2, "hang", name="step-30-hang"),
    PlannedFault(3, 68, 0, "exception", name="step-68-exception"),
    PlannedFault(4, 91, 0, "exception", name="step-91-exception"),
)


@given(
    count=st.integers(0, 30),
    seed=st.integers(0, 2**40),
    after=st.integers(0, 20),
    world_size=st.integers(1, 64),
    stated=st.sets(st.integers(1, 60), max_size=5),
)
def test_every_fault_is_possible_and_steps_are_distinct(count, seed, after, world_size, stated):
    at = tuple(ScheduledFault(step=step, rank=0, type="sigkill") for step in sorted(stated))
    faults = FaultsSection(count=count, seed=seed, types=("exception", "hang"), after_step=after, at=at)
    free = {*range(after + 1, 61)} - stated
    if count > len(free):
        with pytest.raises(ValueError, match="faults need as many steps"):
            fault_schedule(faults, steps=60, world_size=world_size)
        return
    planned = fault_schedule(faults, steps=60, world_size=world_size)
    assert len(planned) == count + len(at)
    assert len({fault.step for fault in planned}) == len(planned)
    assert len({fault.index for fault in planned}) == len(planned)
    assert all(0 <= fault.rank < world_size for fault in planned)
    assert {fault.step for fault in planned if fault.type != "sigkill"} <= free
    assert list(planned) == sorted(planned, key=lambda fault: fault.step)


def test_a_fault_that_has_fired_is_known_by_what_it_is_not_by_its_place_in_the_recipe(tmp_path):
    def at(*faults: tuple[int, int, str]) -> tuple[PlannedFault, ...]:
        stated = tuple(ScheduledFault(step=step, rank=rank, type=kind) for step, rank, kind in faults)
        return fault_schedule(FaultsSection(at=stated), steps=60, world_size=2)

    fired = FiredFaults(tmp_path)
    for fault in at((10, 0, "exception"), (10, 1, "exception")):
        fired.add(fault)
    changed = at((5, 0, "hang"), (10, 1, "exception"), (10, 1, "exception"), (25, 0, "exception"))
    assert [fired.has(fault) for fault in changed] == [False, True, False, False]

    drawn = FaultsSection(count=6)
    for fault in fault_schedule(drawn, steps=60, world_size=4):
        fired.add(fault)
    assert all(fired.has(fault) for fault in fault_schedule(drawn, steps=60, world_size=3)), "ranks are lost"


def test_rank_0_is_hit_as_often_as_any_other_and_weights_count():
    hits = [0, 0, 0, 0]
    kinds = {"exception": 0, "hang": 0}
    for seed in range(500):
        faults = FaultsSection(count=4, seed=seed, types=("exception", "hang"), weights=(3.0, 1.0))
        for fault in fault_schedule(faults, steps=50, world_size=4):
            hits[fault.rank] += 1
            kinds[fault.type] += 1
    assert all(400 < count < 600 for count in hits), hits
    assert 0.70 < kinds["exception"] / 2000 < 0.80


def test_a_run_that_has_not_started_is_not_said_to_have_had_no_fault(tmp_path):
    folder = tmp_path / "run"
    assert post_mortem(folder) == f"faults that happened: the run has not started, {folder} is not there"
    folder.mkdir()
    assert post_mortem(folder) == "faults that happened: none"


def test_a_record_of_a_later_version_that_says_more_is_read(tmp_path):
    path = write_record(tmp_path, FaultRecord("exception", 1, 5, "none", "a-0", "ValueError: x"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "cuda:1"}))
    assert [record.what for record in read_records(tmp_path)] == ["ValueError: x"]
