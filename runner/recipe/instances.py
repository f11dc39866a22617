"""The EC2 instance types that recipes may name, and what a pod may ask of each.

GPU, network and memory figures follow the EC2 data that Karpenter publishes (August 2026); RDMA read and write
are those of the EFA device. `allocatable_*` is what a kubelet with default reservations offers to pods.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 2**20
GIB = 2**30
EFA_HUGEPAGES_MIB = 5120
"""Huge pages of 2 MiB that a container asks for with EFA; nodes with EFA set 5128 of them aside."""

LOCAL_HEADROOM = 20 * GIB
"""What a pod with local storage may write besides: logs, and /tmp with its compilation caches."""


class Instance(NamedTuple):
    """Shape of one node. `gpu_memory_gib` is per GPU; `nvme_gb` is the local instance store (decimal)."""

    name: str
    gpus: int
    gpu: str
    gpu_memory_gib: int
    efa: int
    rdma_read: bool
    rdma_write: bool
    vcpus: int
    memory_gib: int
    nvme_gb: int
    allocatable_millicpu: int
    allocatable_mib: int

    @property
    def request_millicpu(self) -> int:
        """CPU that schedules beside the daemons of a node: 95 % of the vCPUs, whole cores from 8 on."""
        share = min(self.vcpus * 950, self.allocatable_millicpu)
        return share // 1000 * 1000 if self.vcpus >= 8 else share // 100 * 100

    @property
    def local_bytes(self) -> int:
        """Local storage that a pod may fill: what the kubelet hands out of the instance store (it keeps a tenth free),
        less the headroom."""
        return max(0, self.nvme_gb * 10**9 * 9 // 10 - LOCAL_HEADROOM)

    @property
    def request_mib(self) -> int:
        """Memory that schedules beside the daemons of a node: 90 % of the allocatable, less EFA's huge pages."""
        pages = EFA_HUGEPAGES_MIB if self.efa else 0
        share = min(self.allocatable_mib * 9 // 10, self.allocatable_mib - 2 * pages)
        return share // 1024 * 1024


_TABLE = """
p4d.24xlarge      8 A100  40 4  Y/N 96  1152 8000  95690/1082712
p4de.24xlarge     8 A100  80 4  Y/N 96  1152 8000  95690/1082712
p5.4xlarge        1 H100  80 1  Y/Y 16  256  3800  15890/240830
p5.48xlarge       8 H100  80 32 Y/Y 192 2048 30400 191450/1938410
p5e.48xlarge      8 H200 141 32 Y/Y 192 2048 30400 191450/1938410
p5en.48xlarge     8 H200 141 16 Y/Y 192 2048 30400 191450/1937332
p6-b200.48xlarge  8 B200 179 8  Y/Y 192 2048 30400 191450/1937332
p6-b300.48xlarge  8 B300 268 16 Y/Y 192 4096 30400 191450/3877198
g5.xlarge         1 A10G  22 0  N/N 4   16   250   3920/14162
g5.2xlarge        1 A10G  22 0  N/N 8   32   450   7910/29317
g5.4xlarge        1 A10G  22 0  N/N 16  64   600   15890/57691
g5.8xlarge        1 A10G  22 1  N/N 32  128  900   31850/118312
g5.12xlarge       4 A10G  22 1  N/N 48  192  3800  47810/173400
g5.16xlarge       1 A10G  22 1  N/N 64  256  1900  63770/239554
g5.24xlarge       4 A10G  22 1  N/N 96  384  3800  95690/355262
g5.48xlarge       8 A10G  22 1  N/N 192 768  7600  191450/723299
g6.xlarge         1 L4    22 0  N/N 4   16   250   3920/14162
g6.2xlarge        1 L4    22 0  N/N 8   32   450   7910/29317
g6.4xlarge        1 L4    22 0  N/N 16  64   600   15890/57691
g6.8xlarge        1 L4    22 1  Y/Y 32  128  900   31850/118312
g6.12xlarge       4 L4    22 1  Y/Y 48  192  3760  47810/178933
g6.16xlarge       1 L4    22 1  Y/Y 64  256  1880  63770/234021
g6.24xlarge       4 L4    22 1  Y/Y 96  384  3760  95690/355262
g6.48xlarge       8 L4    22 1  Y/Y 192 768  7520  191450/718987
g6e.xlarge        1 L40S  45 0  N/N 4   32   250   3920/29317
g6e.2xlarge       1 L40S  45 0  N/N 8   64   450   7910/59627
g6e.4xlarge       1 L40S  45 0  N/N 16  128  600   15890/118312
g6e.8xlarge       1 L40S  45 1  Y/Y 32  256  900   31850/239554
g6e.12xlarge      4 L40S  45 1  Y/Y 48  384  3800  47810/360157
g6e.16xlarge      1 L40S  45 1  Y/Y 64  512  1900  63770/476504
g6e.24xlarge      4 L40S  45 2  Y/Y 96  768  3800  95690/721682
g6e.48xlarge      8 L40S  45 4  Y/Y 192 1536 7600  191450/1449132
"""


def _parse(line: str) -> Instance:
    name, gpus, gpu, gpu_memory, efa, rdma, vcpus, memory, nvme, allocatable = line.split()
    read, write = (flag == "Y" for flag in rdma.split("/"))
    millicpu, mib = (int(part) for part in allocatable.split("/"))
    return Instance(
        name, int(gpus), gpu, int(gpu_memory), int(efa), read, write,
        int(vcpus), int(memory), int(nvme), millicpu, mib,
    )  # fmt: skip


INSTANCES: dict[str, Instance] = {
    instance.name: instance for instance in map(_parse, _TABLE.strip().splitlines())
}
"""Catalogue by instance type."""


def own_shape(
    name: str, *, gpus: int, gpu_memory: int | None, efa: int, vcpus: int, memory: int, nvme: int
) -> Instance:
    """A node that the catalogue does not list, with the part that kubelet and system keep taken off.

    Args:
        name: what to call it.
        gpu_memory, memory, nvme: bytes.
    """
    mib = memory // MIB
    kept = max(768, mib // 15) + (2 * EFA_HUGEPAGES_MIB if efa else 0)
    return Instance(
        name=name, gpus=gpus, gpu="", gpu_memory_gib=(gpu_memory or 0) // GIB,
        efa=efa, rdma_read=efa > 0, rdma_write=efa > 0, vcpus=vcpus,
        memory_gib=mib // 1024, nvme_gb=nvme // 10**9,
        allocatable_millicpu=vcpus * 1000 - 80, allocatable_mib=mib - kept,
    )  # fmt: skip


def nearest_instance(name: str) -> str | None:
    """The catalogued type that looks most like `name`, for error messages."""
    import difflib  # for error messages only

    close = difflib.get_close_matches(name, INSTANCES, n=1)
    return close[0] if close else None
