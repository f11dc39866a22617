"""A rank that is slower than the others is named, and measuring it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from product import Run, make_run, same


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_slow_rank_is_named_in_the_log_and_in_the_summary(
    tmp_path: Path, undisturbed: Run, strategy: str, rank: int
) -> None:
    pauses = [{"step": step, "rank": rank, "type": "hang"} for step in range(1, 13)]
    run = make_run(
        tmp_path,
        {
            "recovery.stragglers": {"every": 3},
            "faults": {"at": pauses, "hang_duration": "400ms"},
            "sharding": {"strategy": "fsdp", "wrap": "transformer_block"}
            if strategy == "fsdp"
            else {"strategy": "ddp"},
        },
    )
    done = run.finish()
    summary = done.stdout.partition("Slow ranks")[2]
    assert f"rank {rank}" in summary, done.stdout
    assert f"rank {1 - rank}" not in summary.partition("Where the wall time went")[0], done.stdout
    assert "slow rank" in done.stdout + done.stderr
    if strategy == "fsdp":
        assert same(run.state(), undisturbed.state())
