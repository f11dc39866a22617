"""A rank that hangs in its start-up ends its life by itself, in place where the layer can do that."""

from __future__ import annotations

import pytest
from tinylab import expected

from runner.errors import ExitCode
from runner.faults.records import read_records

IN_PLACE = {"none": False, "inprocess": True, "ft_launcher": False, "ft_launcher+inprocess": True}


@pytest.mark.parametrize(
    "layer",
    [
        "inprocess",
        *(pytest.param(layer, marks=pytest.mark.slow) for layer in IN_PLACE if layer != "inprocess"),
    ],
)
def test_a_hang_at_the_start_is_noticed_and_blamed_on_its_rank(tiny, layer):
    run = tiny(layer, "0:1:hang", {"TINY_START": "1"})
    code = run.wait()
    if layer == "none":
        assert code != 0
        (cause,) = [outcome for outcome in run.outcomes if not outcome.consequence]
        assert (cause.rank, cause.exit_code) == (1, ExitCode.CRASHED)
        assert "rank 1 hung in start-up (model): not done after 1 s (recovery.start_timeout)" in cause.message
    else:
        assert code == 0, run.log.read_text()
        assert run.state == expected()
        pids = {path.read_text() for path in (run.folder / "run/lives").iterdir()}
        assert (len(pids) == 2) == IN_PLACE[layer]
    (cause,) = [record for record in read_records(run.folder / "run") if not record.consequence]
    assert (cause.kind, cause.rank, cause.step) == ("hang", 1, 0)
    assert "in fire\n" in cause.stacks
