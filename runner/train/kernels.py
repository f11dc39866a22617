"""How long a GPU computes: what tells a slow GPU from those that it keeps waiting.

NVRx's profiler asks CUPTI for the time of every kernel. Those of collectives, which wait for the others inside, are
left out. One step of many is measured, so it costs training nothing that shows.
"""

from __future__ import annotations

from typing import Any

import structlog

from runner.recovery.nvrx import cupti_manager

_COLLECTIVE = "nccl"
_MICRO = 1e-6


class KernelTimes:
    """Measures this process's kernels while it is on; lasts for the process, as CUPTI does.

    Args:
        manager: NVRx's access to CUPTI.
    """

    def __init__(self, manager: Any) -> None:
        manager.initialize()
        self._manager = manager
        self._on = False

    def start(self) -> None:
        """Measure the kernels that are launched from now on; what was measured before is dropped."""
        self.stop()
        self._manager.reset_results()
        self._manager.start_profiling()
        self._on = True

    def stop(self) -> None:
        """Measure no more."""
        if self._on:
            self._on = False
            self._manager.stop_profiling()

    def seconds(self) -> float:
        """How long the measured kernels ran that have ended by now."""
        results = self._manager.get_results()
        return _MICRO * sum(
            stats.avg * stats.num_calls for name, stats in results.items() if _COLLECTIVE not in name.lower()
        )


def find_kernel_times(log: structlog.stdlib.BoundLogger) -> KernelTimes | None:
    """The meter, or None and a warning where this machine has none."""
    try:
        return KernelTimes(cupti_manager())
    except (ImportError, RuntimeError) as error:  # built against another CUDA; the driver refuses
        log.warning("slow GPUs are not looked for, only slow hosts", because=str(error))
        return None
