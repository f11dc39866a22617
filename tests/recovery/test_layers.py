"""Each layer hands out lives under its real launcher, and mends what it is for."""

from __future__ import annotations

import pytest
from tinylab import expected


@pytest.mark.parametrize(
    "layer",
    [
        "ft_launcher+inprocess",
        *(pytest.param(layer, marks=pytest.mark.slow) for layer in ("none", "inprocess", "ft_launcher")),
    ],
)
def test_runs_to_the_end_without_faults(tiny, layer):
    run = tiny(layer)
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert [outcome.exit_code for outcome in run.outcomes] == [0]
    assert len(run.attempts) == 1


@pytest.mark.parametrize(
    ("layer", "rank"),
    [
        ("inprocess", 1),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in [("inprocess", 0), ("ft_launcher+inprocess", 1)]),
    ],
)
def test_exception_is_mended_in_place(tiny, layer, rank):
    run = tiny(layer, f"4:{rank}:exception,7:{1 - rank}:exception")
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 3
    pids = {path.read_text() for path in (run.folder / "run/lives").iterdir()}
    assert len(pids) == 2, "the processes stayed the same"


@pytest.mark.parametrize(
    "what",
    [
        "os_exit_0",
        *(pytest.param(w, marks=pytest.mark.slow) for w in ("sigkill", "exception", "exit_0", "exit_1")),
    ],
)
def test_ft_launcher_starts_workers_again(tiny, what):
    run = tiny("ft_launcher", f"4:1:{what}")
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 2


def test_combined_layers_take_soft_and_hard_faults_in_any_order(tiny):
    """Also two without a heartbeat in between: a rank monitor must not give its rank up for that."""
    faults = "3:1:exception,5:0:sigkill,7:0:exception,7:0:exit_1,9:1:sigkill"
    run = tiny("ft_launcher+inprocess", faults)
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 6
