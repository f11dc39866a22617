"""Data workers that die or freeze: the rank gets to know, and none is left when its life is over."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from tinylab import recipe_text

from runner.faults.injector import ScheduledFaults
from runner.ledger.writer import LedgerWriter
from runner.recipe.fault_schedule import PlannedFault
from runner.recipe.faults import FaultType
from runner.recipe.recipe import Recipe
from runner.recovery.sight import Sight
from runner.system.process import DATA_WORKER, children_by_parent, process_name
from runner.train.data.batches import PackedBatches
from runner.train.data.packed import PackedTokens
from runner.train.data.watch import DataWorkerError, Watched


def workers() -> list[int]:
    return [pid for pid in children_by_parent().get(os.getpid(), ()) if process_name(pid) == DATA_WORKER]


def make_batches(tmp_path: Path, worker_timeout: str = "1s") -> PackedBatches:
    """One rank's batches of 100 steps, loaded by two workers."""
    text = yaml.safe_load(recipe_text(tmp_path, "none", steps=100))
    text["dataset"] |= {"sequence_length": 4, "workers": 2, "worker_timeout": worker_timeout}
    recipe = Recipe.model_validate(text)
    np.arange(900, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    (tmp_path / "index.json").write_text(
        '{"tokens": 900, "documents": 1, "dtype": "uint16", "tokenizer": "bytes"}'
    )
    return PackedBatches(recipe, PackedTokens(tmp_path, 4), rank=0, world_size=1)


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[PackedBatches]:
    made = make_batches(tmp_path)
    made.start(0, {})
    yield made
    made.close()


def strike(folder: Path, kind: FaultType) -> None:
    ledger = LedgerWriter(folder, rank=0, life="a")
    ScheduledFaults([PlannedFault(0, 1, 0, kind)], folder, ledger).during_step(1, 0)
    ledger.close()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "loader_death",
            "DataLoader worker .* (Killed|exited unexpectedly)|data worker of this rank is gone",
        ),
        ("loader_hang", "gave nothing for 1 s .dataset.worker_timeout"),
    ],
)
def test_a_lost_data_worker_is_an_exception_of_its_rank_and_the_others_go_too(
    tmp_path: Path, batches: PackedBatches, kind: FaultType, told: str
) -> None:
    assert [batch.shape for batch in batches.micro_batches()] == [torch.Size((1, 5))] * 2
    assert len(workers()) == 2
    with pytest.raises(RuntimeError, match=told):
        strike(tmp_path, kind)
        for _ in range(20):  # what was loaded ahead is still there
            list(batches.micro_batches())
            time.sleep(0.05)
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < 4, "torch itself waits for 10 s for each frozen worker"
    assert workers() == []


def test_a_rank_that_is_silent_because_of_its_data_worker_is_seen_to_wait_for_it(
    tmp_path: Path, batches: PackedBatches
) -> None:
    list(batches.micro_batches())
    assert not Sight.now().waits_for_data
    seen: list[Sight] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):  # its limit is 1 s
            seen.append(Sight.now())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with pytest.raises(DataWorkerError):
            strike(tmp_path, "loader_hang")
            while True:  # what was loaded ahead is still there
                list(batches.micro_batches())
    finally:
        over.set()
        looking.join()
    assert any(sight.waits_for_data and not sight.waits_for_peers for sight in seen)


class Stuck(torch.utils.data.Dataset[torch.Tensor]):
    """Storage that hangs."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3600)
        raise AssertionError


@pytest.mark.parametrize("kind", ["frozen", "stuck"])
def test_a_rank_that_waits_for_a_worker_answers_when_its_life_is_ended(tmp_path: Path, kind: str) -> None:
    """Whoever finds it silent may do so long before `dataset.worker_timeout`, and kills who does not answer."""
    made = make_batches(tmp_path, worker_timeout="1h")
    if kind == "stuck":
        made._tokens = Stuck()  # type: ignore[assignment]
    made.start(0, {})

    def end_the_life() -> None:
        since = time.monotonic()
        while time.monotonic() - since < 0.5:
            if made._stream._asked is None or len(workers()) < 2:
                since = time.monotonic()
            time.sleep(0.01)
        made.abandon()

    try:
        if kind == "frozen":
            list(made.micro_batches())
            strike(tmp_path, "loader_hang")
        threading.Thread(target=end_the_life, daemon=True).start()
        with pytest.raises(RuntimeError) as caught:
            for _ in range(20):  # what was loaded ahead is still there
                list(made.micro_batches())
        # Not when torch looked for nothing that came and then whether its workers are there, once in 5 s.
        assert not isinstance(caught.value.__cause__, queue.Empty), caught.value.__cause__
    finally:
        made.close()
    assert workers() == []


def test_workers_of_a_life_that_was_broken_into_are_no_fault_of_the_next(
    tmp_path: Path, batches: PackedBatches
) -> None:
    list(batches.micro_batches())  # and its `close` is never reached
    left = workers()
    later = make_batches(tmp_path)
    later.start(1, {})
    try:
        assert len(list(later.micro_batches())) == 2  # by now both workers have named themselves
        assert len(workers()) == 2 and not set(workers()) & set(left)
    finally:
        later.close()
    for _ in range(10):  # torch's handler would raise here, or above
        time.sleep(0.02)
    assert workers() == []


def test_what_a_life_that_is_over_leaves_of_its_workers_keeps_nobody_waiting(
    batches: PackedBatches,
) -> None:
    """Its `close` is broken into and never reached; the iterator goes with the exception's traceback."""
    list(batches.micro_batches())
    for worker in workers():  # frozen, they do not hear that they are asked to end
        os.kill(worker, signal.SIGSTOP)
    monitor = threading.Thread(target=batches.abandon)
    monitor.start()
    monitor.join()
    began = time.monotonic()
    batches._loading, batches._stream = iter(()), Watched(iter(()), 0.0, print, print)
    gc.collect()
    assert time.monotonic() - began < 4, "torch itself waits for each"
    for _ in range(10):  # torch's handler would raise here, or above
        time.sleep(0.02)
    assert workers() == []


def test_workers_are_killed_that_were_started_a_moment_ago(tmp_path: Path) -> None:
    later = make_batches(tmp_path)
    later.start(0, {})
    for worker in later._loading._workers:  # frozen, they do not hear that they are asked to end
        os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    later.close()
    assert time.monotonic() - began < 4, "torch itself waits for each"
    assert workers() == []


def test_a_fault_of_data_workers_without_any_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="loader_death, and this rank has no data workers"):
        strike(tmp_path, "loader_death")


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_rank_takes_its_data_workers_along_also_a_frozen_one(tmp_path: Path) -> None:
    rank = os.fork()
    if rank == 0:
        try:
            made = make_batches(tmp_path)
            made.start(0, {})
            list(made.micro_batches())  # by now both workers have named themselves
            (tmp_path / "workers").write_text(" ".join(map(str, workers())))
            os.kill(workers()[0], signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    longest = threading.Timer(60, os.kill, (rank, signal.SIGTERM))
    longest.start()
    _, status = os.waitpid(rank, 0)
    longest.cancel()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    left = [int(pid) for pid in (tmp_path / "workers").read_text().split()]
    assert len(left) == 2
    try:
        deadline = time.monotonic() + 10
        while any(map(lives, left)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [pid for pid in left if lives(pid)] == []
    finally:
        for pid in filter(lives, left):
            os.kill(pid, signal.SIGKILL)
