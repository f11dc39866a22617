"""`checkpoint`: how often state is kept, how it is written, and what happens when that fails."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import Patience, PositiveInt, Section, Size


class CheckpointSection(Section):
    """Snapshots live in host memory and serve restarts on the node; checkpoints are durable."""

    mode: Literal["sync", "async"] = "async"
    """`async`: NVRx's writer process writes while training goes on. `sync`: training waits for the write."""
    every: PositiveInt
    """Steps between durable checkpoints. The last step is always saved."""
    snapshot_every: PositiveInt | None = None
    """Steps between in-memory snapshots. Default: only with each checkpoint. 1 makes a soft fault cost one step."""
    folder: str | None = None
    """Where checkpoints go. Default: `checkpoints` under `output.folder`. Must be seen by all nodes."""
    keep_last: PositiveInt = 3
    """Newest checkpoints that are kept."""
    keep_every: PositiveInt | None = None
    """Besides, keep the checkpoints of steps that are multiples of this."""
    verify: Literal["size", "full"] = "full"
    """What is checked before a checkpoint is loaded: file sizes, or sizes and checksums."""
    on_busy: Literal["wait", "skip"] = "wait"
    """What a save does while the one before is still being written."""
    on_error: Literal["stop", "continue"] = "stop"
    """Whether a failed save ends the run (exit code 13) or is only reported on every rank."""
    write_timeout: Patience = timedelta(minutes=20)
    """Longest a write may take before it counts as failed."""
    load_timeout: Patience = timedelta(minutes=20)
    """Longest a load may take."""
    writer_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Files (and writers) a rank."""
    storage_bandwidth: Size | None = None
    """Expected write bandwidth of the storage a node, in bytes a second (`1GiB`). Only used to check that a
    save fits its interval and timeouts."""
