"""What the article published, to stand beside what was measured here.

AWS, 2026: fault-tolerant FSDP training on Amazon EKS with NVRx; Llama-3.1-8B on H100. Shares of 1, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "AWS, 2026: Llama-3.1-8B, FSDP on H100, FSx for Lustre"


@dataclass(frozen=True)
class PublishedEfficiency:
    """Training efficiency with a save every `every` steps on `gpus` GPUs."""

    gpus: int
    every: int
    sync: float
    asynchronous: float


@dataclass(frozen=True)
class PublishedLayer:
    """2 nodes, 2000 steps, a checkpoint every 500, five faults of seed 42."""

    layer: str
    training: float
    infra: float
    recovery: float


EFFICIENCY = (
    PublishedEfficiency(16, 1000, 0.59, 0.992),  # sync: 57 to 61 %, the middle
    PublishedEfficiency(64, 1000, 0.603, 0.998),
    PublishedEfficiency(64, 100, 0.147, 0.296),
)
LAYERS = (
    PublishedLayer("inprocess", 0.31, 0.87, 10.0),
    PublishedLayer("ft_launcher", 0.255, 0.859, 17.0),
    PublishedLayer("kubernetes", 0.115, 0.358, 270.0),
)
LAYER_NAME = {
    "inprocess": "in-process",
    "ft_launcher": "ft_launcher",
    "kubernetes": "Kubernetes restart",  # of real pods; what is measured here is imitated
}
