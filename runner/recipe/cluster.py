"""`cluster`: the machines: ranks for a local run, and everything the emitted manifest needs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import PositiveInt, Section


class ClusterSection(Section):
    """Where the run happens. World size = `nodes` x `processes_per_node`."""

    nodes: PositiveInt = 1
    """Number of nodes."""
    processes_per_node: PositiveInt | None = None
    """Ranks a node. Default: the GPUs of `instance_type`, else of the machine, else 1."""
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    """`cuda` trains over NCCL, `cpu` over gloo. `auto`: `cuda` where `instance_type` is given or a GPU is seen."""
    instance_type: str | None = None
    """EC2 instance type, e.g. `p5.48xlarge`. Needed to emit a manifest."""
    rendezvous_port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    """Port of the leader where the launchers meet. The port after it serves the in-process store."""
