"""What differs between the NVRx versions that recovery uses (0.4.1 to 0.7). Nothing else here asks for a version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from nvidia_resiliency_ext.inprocess import (
    CallWrapper,
    Compose,
    Wrapper,
)
from nvidia_resiliency_ext.inprocess.abort import Abort, AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.attribution import format_interruption_records
from nvidia_resiliency_ext.inprocess.exception import RestartAbort, RestartError
from nvidia_resiliency_ext.inprocess.finalize import Finalize
from nvidia_resiliency_ext.inprocess.health_check import CudaHealthCheck, FaultCounter, FaultCounterExceeded
from nvidia_resiliency_ext.inprocess.initialize import RetryController
from nvidia_resiliency_ext.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from nvidia_resiliency_ext.inprocess.store import TCPStore as WrapperStore

__all__ = [
    "Abort",
    "AbortTorchDistributed",
    "ActivateAllRanks",
    "CallWrapper",
    "Compose",
    "CudaHealthCheck",
    "FaultCounter",
    "FaultCounterExceeded",
    "Finalize",
    "RankMonitorClient",
    "RestartAbort",
    "RestartError",
    "RetryController",
    "ShiftRanks",
    "WrapperStore",
    "format_interruption_records",
    "make_wrapper",
]


@contextlib.contextmanager
def _hidden_local_rank() -> Iterator[None]:
    """From 0.5 the wrapper adds NVML health checks wherever LOCAL_RANK is set; without a GPU they fail, and every
    healthy rank dies at its first restart."""
    value = os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if value is not None:
            os.environ["LOCAL_RANK"] = value


def make_wrapper(*, gpus: bool, **settings: Any) -> Wrapper:
    """`inprocess.Wrapper` with these settings; the NVML checks that NVRx adds only where there is a GPU."""
    with contextlib.nullcontext() if gpus else _hidden_local_rank():
        return Wrapper(**settings)
