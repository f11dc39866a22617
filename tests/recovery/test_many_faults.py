"""Twenty faults in a row: nothing grows."""

from __future__ import annotations

import json

import pytest
from tinylab import expected

STEPS = 22


@pytest.mark.parametrize(
    "layer", ["inprocess", pytest.param("ft_launcher+inprocess", marks=pytest.mark.slow)]
)
def test_twenty_faults_in_place_leave_everything_flat(tiny, layer):
    faults = ",".join(f"{step}:{step % 2}:exception" for step in range(2, 22))
    run = tiny(layer, faults, steps=STEPS, environ={"TINY_CENSUS": "1"})
    assert run.wait(150) == 0, run.log.read_text()[-3000:]
    assert run.state == expected(STEPS)
    assert len(run.attempts) == 21
    for rank in (0, 1):
        census = [
            json.loads(line) for line in (run.folder / f"run/census-{rank}.jsonl").read_text().splitlines()
        ]
        assert len(census) == 21
        assert len({entry["pid"] for entry in census}) == 1
        # The record of a fault may just be being written, by a thread of its own: single counts say little.
        early, late = census[2:7], census[-5:]
        for what in ("threads", "descriptors", "children"):
            assert min(each[what] for each in late) <= max(each[what] for each in early), (what, census)
        assert late[-1]["resident"] < early[0]["resident"] + 24 * 2**20, census


@pytest.mark.slow
def test_twenty_killed_workers_in_a_row(tiny):
    faults = ",".join(f"{step}:{step % 2}:sigkill" for step in range(2, 22))
    run = tiny("ft_launcher", faults, steps=STEPS, ft_launcher={"max_restarts": 20})
    assert run.wait(250) == 0, run.log.read_text()[-3000:]
    assert run.state == expected(STEPS)
    assert len(run.attempts) == 21
