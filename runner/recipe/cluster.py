"""`cluster`: the machines: ranks for a local run, and everything the emitted manifest needs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import NonNegativeInt, PositiveInt, Section, Size
from runner.recipe.instances import MIB, Instance, own_shape
from runner.recipe.kubernetes import KubernetesSection
from runner.recipe.quantity import MOST_PODS


class InstanceShape(Section):
    """A node that the catalogue does not list. Requests are taken from these figures with the usual margins."""

    gpus: NonNegativeInt
    """GPUs a node; 0 for a CPU node."""
    gpu_memory: Size | None = None
    """Memory of one GPU."""
    efa: NonNegativeInt = 0
    """EFA interfaces a node."""
    vcpus: PositiveInt
    """vCPUs a node."""
    memory: Annotated[Size, Field(ge=2 * 1024 * MIB)]
    """Memory a node, as EC2 states it."""
    nvme: Size = 0
    """Local instance store a node."""

    def as_instance(self, name: str) -> Instance:
        """The same shape as a catalogue entry, with the part that kubelet and system keep taken off."""
        return own_shape(
            name, gpus=self.gpus, gpu_memory=self.gpu_memory, efa=self.efa, vcpus=self.vcpus, memory=self.memory,
            nvme=self.nvme,
        )  # fmt: skip


class ClusterSection(Section):
    """Where the run happens. World size = `nodes` x `processes_per_node`."""

    nodes: Annotated[int, Field(ge=1, le=MOST_PODS)] = 1
    """Number of nodes; the limit is that of an Indexed Job's pods."""
    processes_per_node: PositiveInt | None = None
    """Ranks a node. Default: the GPUs of `instance_type`, else of the machine, else 1. Where only the machine tells,
    rules about ranks are checked when a run starts."""
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    """`cuda` trains over NCCL, `cpu` over gloo. `auto`: `cuda` where `instance_type` is given or a GPU is seen."""
    instance_type: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")] | None = None
    """EC2 instance type, e.g. `p5.48xlarge`. Needed to emit a manifest."""
    instance: InstanceShape | None = None
    """The shape of `instance_type`, where the catalogue does not list it."""
    rendezvous_port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    """Port of the leader where the launchers meet. Where the ranks meet is a free port, another one at each start."""
    leader: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$")] | None = None
    """Name or IPv4 address of node 0, for several machines without Kubernetes; a pod gets it from its Job."""
    nvrx_version: Annotated[str, Field(pattern=r"^0\.[4-7](\.[0-9]+)?$")] | None = None
    """NVRx in the image, e.g. `0.7.0`, for emitted commands. Default: the version that is installed where the
    command is built. A run always follows the version that is installed."""
    nccl_version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){1,3}$")] | None = None
    """NCCL in the image, e.g. `2.28.9`. Only used to refuse releases that do not suit the recovery layer."""
    kubernetes: KubernetesSection | None = None
    """What the emitted manifest needs beyond the instance type."""
