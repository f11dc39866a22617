"""Which state a life starts from: one rank chooses, all ranks try, and what one of them cannot have nobody takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from runner.checkpoint import loader
from runner.checkpoint.contradiction import OwnRun, changed, same_tensors
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.record import CommitRecord, Damaged, read_record
from runner.checkpoint.retention import Retention
from runner.checkpoint.staging import Staging
from runner.errors import ExitCode, InputError, RunError
from runner.ledger.events import LoadSource
from runner.recipe.checkpoint import CheckpointSection
from runner.train.ports import TrainState

_PAUSE = 0.002


class Restorer:
    """One agreement at the start of a life. `committed` holds the steps on storage afterwards."""

    def __init__(
        self,
        *,
        exchange: Exchange,
        staging: Staging,
        folder: CheckpointFolder,
        retention: Retention,
        section: CheckpointSection,
        run: OwnRun | None,
        fingerprint: str,
        in_process: bool,
        log: Any,
        beat: Callable[[], None],
        reclaim: Callable[[], None],
    ) -> None:
        self.committed: set[int] = set()
        self._exchange = exchange
        self._staging = staging
        self._folder = folder
        self._retention = retention
        self._section = section
        self._run = run
        self._fingerprint = fingerprint
        self._in_process = in_process
        self._log = log
        self._beat = beat
        self._reclaim = reclaim

    def restore(self, state: TrainState) -> tuple[int, LoadSource, dict[str, Any]]:
        """Put the newest state that all ranks can have into the live tensors.

        Returns:
            its step, where it came from, and this rank's streaming state.

        Raises:
            RunError: NO_LOADABLE_CHECKPOINT where checkpoints exist and none loads, or the run has saved some and
                there are none; BAD_RECIPE where they belong to another model, are past the run's end, or the folder
                cannot be used.
        """
        timeout = self._section.load_timeout
        self._timeout = timeout
        held = self._exchange.gather("restore/held", self._staging.buffers.steps(), timeout, "the snapshots")
        common = sorted(set.intersection(*(set(steps) for steps in held)))
        attempt = 0
        while True:
            choice = self._exchange.decide(
                f"restore/{attempt}/choice",
                partial(self._choose, common, attempt, state),
                timeout,
                "the choice",
            )
            self.committed = set(choice["committed"])
            step = choice["step"]
            if step == 0:
                for buffer in self._staging.buffers:
                    self._staging.buffers.forget(buffer)
                return 0, "fresh", {}
            if choice["memory"]:  # all ranks have said that they hold it
                found = self._staging.buffers.at(step)
                assert found is not None
                self._staging.restore(found)
                return step, "memory" if self._in_process else "shared_memory", dict(found.data)
            problem = self._from_storage(choice["record"])
            problems = self._exchange.gather(f"restore/{attempt}/result", problem, timeout, "the load")
            if not any(problems):
                found = self._staging.buffers.at(step)
                assert found is not None
                self._staging.restore(found)
                return step, "storage", dict(found.data)
            said = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(problems) if text)
            self._exchange.decide(
                f"restore/{attempt}/aside", partial(self._set_aside, step, said), timeout, "setting aside"
            )
            attempt += 1

    def _choose(self, common: list[int], attempt: int, state: TrainState) -> dict[str, Any]:
        """Rank 0: the newest candidate. Damaged records are set aside on the way."""
        folder = self._folder
        if attempt == 0:
            folder.prepare()
            self._retention.sweep()
        while True:
            stored = [entry.step for entry in folder.committed()]
            if common and (not stored or common[-1] >= stored[-1]):
                return {"memory": True, "step": common[-1], "committed": stored}
            if not stored:
                break
            step = stored[-1]
            try:
                record = read_record(folder.path(step))
            except Damaged as damage:
                self._set_aside(step, str(damage))
                continue
            self._check(record, state)
            if self._run is not None and self._run.check_end(step, stored, folder.root):
                self._log.warning("the run is past training.steps: nothing is left to train", at=step)
            self._tell_lost(step, attempt)
            return {"memory": False, "step": step, "record": asdict(record), "committed": stored}
        damaged = [entry.path.name for entry in folder.entries() if entry.state == "damaged"]
        if damaged:
            raise RunError(
                f"none of the checkpoints in {folder.root} loads (set aside: {', '.join(damaged)}); repair one and "
                f"take its suffix away, or name another output.folder to start from step 0",
                ExitCode.NO_LOADABLE_CHECKPOINT,
            )
        if self._run is not None:
            self._run.check_empty(folder.root)
        return {"memory": False, "step": 0, "committed": []}

    def _tell_lost(self, step: int, attempt: int) -> None:
        """A newer checkpoint that the run has saved and nobody set aside is missed once."""
        if self._run is None or attempt:
            return
        aside = {entry.step for entry in self._folder.entries() if entry.state == "damaged"}
        lost = self._run.lost(step, aside)
        if lost:
            self._log.warning(
                "a newer checkpoint that this run has saved is gone: the steps after this one are trained again",
                at=step, gone=lost, path=str(self._folder.path(lost)),
            )  # fmt: skip

    def _check(self, record: CommitRecord, state: TrainState) -> None:
        """Refuse another model's checkpoint, and streaming state that cannot be shared out anew."""
        where = self._folder.path(record.step)
        if record.fingerprint != self._fingerprint:
            mine = {n: [str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in state.tensors.items()}
            same_tensors(where, record.tensors, mine)
        if any(record.data) and record.world_size != self._exchange.world_size:
            raise InputError(
                f"{where} holds the position in streaming data of {record.world_size} ranks; this run has "
                f"{self._exchange.world_size}, and a stream cannot be shared out anew: use as many ranks"
            )
        change = changed(record.decided, state.decided)
        if change is not None:
            self._log.warning(
                "the recipe is not the one that this checkpoint was written with",
                step=record.step,
                changed=change.settings,
                effect=change.effect,
            )

    def _from_storage(self, described: dict[str, Any]) -> str | None:
        """Read and verify this rank's share; returns what is wrong, None where nothing is."""
        record = CommitRecord(**described)
        rank, world_size = self._exchange.rank, self._exchange.world_size
        same = record.world_size == world_size and len(record.data) > rank
        self._wait_for_room()
        buffer = self._staging.load_begin()
        try:
            loader.load(
                self._folder.path(record.step),
                record,
                self._staging.layout,
                self._staging.buffers.memory_of(buffer),
                rank,
                world_size,
                full=self._section.verify == "full",
                threads=max(4, self._section.writer_threads),
                beat=self._beat,
            )
        except Damaged as damage:
            self._staging.buffers.forget(buffer)
            return str(damage)
        except OSError as error:
            self._staging.buffers.forget(buffer)
            return f"{error.filename or self._folder.path(record.step)}: {error.strerror}"
        self._staging.load_end(buffer, record.step, record.data[rank] if same else {})
        return None

    def _wait_for_room(self) -> None:
        """Writers may still read buffers for abandoned saves; they have deadlines. Or a checksum is being taken."""
        end = time.monotonic() + self._timeout.total_seconds()
        while self._staging.buffers.free() is None and time.monotonic() < end:
            self._reclaim()
            self._beat()
            time.sleep(_PAUSE)

    def _set_aside(self, step: int, reason: str) -> None:
        target = self._folder.set_aside(step)
        self._log.error(
            "checkpoint does not load and is set aside", step=step, path=str(target), reason=reason
        )
