"""How long a GPU computes, and what is made of it, with a profiler that gives back what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from torch.distributed import HashStore

from runner.ledger.events import PaceMeasured
from runner.recipe.recovery import StragglerSettings
from runner.train.kernels import KernelTimes, find_kernel_times
from runner.train.pace import Pace


class Profiler:
    """NVRx's access to CUPTI, as far as it is used. Every kernel that runs while it is on takes `each` microseconds."""

    def __init__(self, each: float = 100.0) -> None:
        self.each = each
        self.initialized = self.on = False
        self.calls: dict[str, int] = {}

    def initialize(self) -> None:
        self.initialized = True

    def start_profiling(self) -> None:
        assert self.initialized
        assert not self.on
        self.on = True

    def stop_profiling(self) -> None:
        assert self.on
        self.on = False

    def reset_results(self) -> None:
        self.calls = {}

    def get_results(self) -> dict[str, Any]:
        return {name: SimpleNamespace(avg=self.each, num_calls=count) for name, count in self.calls.items()}

    def run(self, name: str, count: int = 1) -> None:
        if self.on:
            self.calls[name] = self.calls.get(name, 0) + count


def test_collectives_are_left_out_and_so_is_what_ran_before() -> None:
    profiler = Profiler()
    kernels = KernelTimes(profiler)
    kernels.start()
    profiler.run("old")
    kernels.start()  # a life that a fault ended had not stopped it
    profiler.run("nvjet_sm90_tst_256x128", 30)
    profiler.run("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1000)
    kernels.stop()
    profiler.run("late")
    assert kernels.seconds() == pytest.approx(30 * 100e-6)


def test_without_cupti_one_warning_says_so() -> None:
    with capture_logs() as said:
        found = find_kernel_times(structlog.get_logger())
    if found is not None:
        pytest.skip("this machine has CUPTI")
    assert [line["event"] for line in said] == ["slow GPUs are not looked for, only slow hosts"]
    assert said[0]["because"]


class Waits:
    """Of hosts that do nothing but wait."""

    def take(self) -> float:
        return 1e9


def paces(every: int, **profilers: Profiler) -> tuple[list[PaceMeasured], list[dict[str, Any]]]:
    """Two ranks over 12 steps, in which each runs 10 kernels a step; what rank 1 records, and what rank 0 says."""
    store, recorded = HashStore(), []
    ranks = []
    for rank, profiler in enumerate(profilers.values()):
        life: Any = SimpleNamespace(store=store, rank=rank, world_size=2)
        ledger: Any = SimpleNamespace(record=recorded.append if rank == 1 else lambda event: None)
        waits: Any = Waits()
        settings = StragglerSettings(every=every)
        ranks.append(
            (profiler, Pace(settings, waits, KernelTimes(profiler), life, ledger, structlog.get_logger()))
        )
    with capture_logs() as said:
        for step in range(1, 14):
            for profiler, pace in ranks:
                pace.step_begins(step)
                profiler.run("nvjet", 10)
    return recorded, said


def test_one_step_stands_for_all_of_a_comparison_and_the_slow_gpu_is_named() -> None:
    recorded, said = paces(4, rank_0=Profiler(100e3), rank_1=Profiler(250e3))
    assert [(pace.first, pace.last, pace.computed) for pace in recorded] == [
        (1, 4, pytest.approx(10.0)), (5, 8, pytest.approx(10.0)), (9, 12, pytest.approx(10.0)),
    ]  # fmt: skip
    slow = [(line["rank"], line["what"], line["steps"]) for line in said if line["event"] == "slow rank"]
    assert slow == [(1, "GPU", "1-4"), (1, "GPU", "5-8")], "a comparison is told one round later"


def test_comparisons_that_are_too_short_leave_kernels_out() -> None:
    recorded, _ = paces(2, rank_0=Profiler(), rank_1=Profiler())
    assert {pace.computed for pace in recorded} == {None}
