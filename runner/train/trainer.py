"""The training function that the recovery layer runs: one life from joining the ranks to its end."""

from __future__ import annotations

import gc
import time

import torch

from runner.ledger.clocks import NodePlace, exchange_clocks
from runner.ledger.events import Loaded, PhaseEnded
from runner.ledger.writer import node_id
from runner.train.connect import connect_early
from runner.train.data.batches import check_batch_arithmetic
from runner.train.data.source import DataPreparation
from runner.train.facts import model_facts
from runner.train.first_kernels import load_kernels
from runner.train.loop import LoopParts, TrainingLoop
from runner.train.ports import Ledger, Life
from runner.train.same_recipe import check_same_recipe
from runner.train.setup import ModelFactory, Workload, configure_backend, pick_device


class Trainer:
    """The training function that the recovery layer runs, once for each life.

    Args:
        parts: the parts that outlive a life.
        data: hands out a rank's batches; kept between lives.
        factory: builds the model; made in the first life where it is not given, and kept between lives.
    """

    def __init__(self, parts: LoopParts, data: DataPreparation, factory: ModelFactory | None = None) -> None:
        self._parts, self._data, self._factory = parts, data, factory

    def __call__(self, life: Life) -> None:
        """One life. Returns when the run is done; raises what ended it otherwise."""
        parts, recipe, phase = self._parts, self._parts.recipe, _Phases(self._parts.ledger)
        longest = recipe.recovery.start_timeout
        life.starting("data", longest)
        check_batch_arithmetic(recipe, life.world_size)
        device = pick_device(recipe, life.local_rank)
        if life.in_process and device.type == "cuda":
            # Each life has streams of its own, and torch keeps freed memory by stream: nothing would reuse it.
            torch.cuda.empty_cache()
        configure_backend(recipe, device, life.local_world_size)
        batches = self._data.batches(life)
        if self._factory is None:
            self._factory = ModelFactory(recipe, self._data.tokenizer)
        if not life.in_process:
            # What is imported by now stays: collections need not look at its millions of objects again. A restart
            # in process collects several times, each of which took a few tenths of a second.
            gc.freeze()
            with life.atomic():  # it starts a thread
                load_kernels(recipe, self._factory.config, device)
        phase.ended("data")
        life.starting("model", longest)  # joining others is no part of it: it waits
        life.join(device)
        if not life.in_process:
            check_same_recipe(recipe, life)
        if not life.in_process and life.local_rank == 0:
            self._compare_clocks(life)
        phase.ended("rendezvous")
        with life.atomic():  # it starts a thread
            connection = connect_early(recipe, device)
        workload = self._factory.build(device, life.world_size)
        try:
            phase.ended("model")
            if life.rank == 0:
                parts.ledger.record(model_facts(workload.module, self._factory.config, recipe, device))
            self._restore(life, workload, device)
            connection.wait()
            TrainingLoop(parts, life, workload, batches, device).run()
            life.done()
        except Exception:
            life.failing()  # what is closed below takes its time, and a peer's hang may be noticed meanwhile
            raise
        finally:
            batches.close()
            workload.release()  # the exception's traceback holds our frames: they must not hold all of this

    def _compare_clocks(self, life: Life) -> None:
        place = NodePlace(
            life.rank // life.local_world_size, life.world_size // life.local_world_size, node_id()
        )
        synced = exchange_clocks(life.store, place)
        if synced is not None:
            self._parts.ledger.record(synced)

    def _restore(self, life: Life, workload: Workload, device: torch.device) -> None:
        parts, began = self._parts, time.monotonic()
        life.starting("restore", parts.recipe.checkpoint.load_timeout)
        parts.checkpointer.attach(life, workload.state)
        step, source = parts.checkpointer.restore()
        life.resumed(step)
        if source == "fresh" and self._factory is not None:
            self._factory.fill(workload, device)
        parts.ledger.record(Loaded(step=step, source=source, seconds=time.monotonic() - began))
        if life.rank == 0:
            parts.log.info("ready", after_step=step, source=source, world_size=life.world_size)


class _Phases:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._began = ledger, time.monotonic()

    def ended(self, phase: str) -> None:
        now = time.monotonic()
        self._ledger.record(PhaseEnded(phase=phase, seconds=now - self._began))
        self._began = now
