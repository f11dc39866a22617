"""Which state a life starts from: one rank chooses, all ranks try, and what one of them cannot have nobody takes.

A checkpoint is set aside where its files, as all ranks see them, are wrong; where a rank cannot read them, or does not
see what its peers see, all stop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from runner.checkpoint import loader
from runner.checkpoint.contradiction import OwnRun, changed, same_tensors
from runner.checkpoint.exchange import Exchange
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.patience import may_pass, patiently, unreadable, words
from runner.checkpoint.record import (
    CommitRecord,
    Damaged,
    OtherFormat,
    WrongFiles,
    look_for_record,
    read_record,
)
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
                cannot be used; SAVE_FAILED where a rank cannot read them, or does not see what others see.
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
                self._agree_to_start_anew(attempt)
                for buffer in self._staging.buffers:
                    self._staging.buffers.forget(buffer)
                return 0, "fresh", {}
            if choice["memory"]:  # all ranks have said that they hold it
                found = self._staging.buffers.at(step)
                assert found is not None
                self._staging.restore(found)
                return step, "memory" if self._in_process else "shared_memory", dict(found.data)
            if choice["record"] is None and self._exchange.rank == 0:
                problem = choice["problem"]
            else:
                problem = self._from_storage(step, choice["record"])
            problems = self._exchange.gather(f"restore/{attempt}/result", problem, timeout, "the load")
            if not any(problems):
                found = self._staging.buffers.at(step)
                assert found is not None
                self._staging.restore(found)
                return step, "storage", dict(found.data)
            cannot = [
                f"rank {rank} {p['cannot']}" for rank, p in enumerate(problems) if p and p.get("cannot")
            ]
            cannot = cannot or _seen_otherwise(self._folder.path(step), problems)
            if cannot:
                raise unreadable(cannot)
            said = "; ".join(f"rank {rank}: {p['damage']}" for rank, p in enumerate(problems) if p)
            self._exchange.decide(
                f"restore/{attempt}/aside", partial(self._set_aside, step, said), timeout, "setting aside"
            )
            attempt += 1

    def _choose(self, common: list[int], attempt: int, state: TrainState) -> dict[str, Any]:
        """Rank 0: the newest candidate. Damaged records are set aside on the way."""
        folder = self._folder
        if attempt == 0:
            patiently(folder.prepare, folder.root, self._rest, self._tell, may_pass)
            patiently(self._retention.sweep, folder.root, self._rest, self._tell, may_pass)
        while True:
            committed = patiently(folder.committed, folder.root, self._rest, self._tell, may_pass)
            stored = [entry.step for entry in committed]
            if common and (not stored or common[-1] >= stored[-1]):
                return {"memory": True, "step": common[-1], "committed": stored}
            if not stored:
                break
            step = stored[-1]
            try:
                path = folder.path(step)
                record = patiently(partial(read_record, path), path, self._rest, self._tell)
                self._check(record, state)
                if self._past_end(step, stored):
                    self._log.warning("the run is past training.steps: nothing is left to train", at=step)
            except (
                WrongFiles
            ) as wrong:  # in the eyes of rank 0: the others are asked whether they see the record
                problem = _problem_of(wrong)
                return {
                    "memory": False, "step": step, "record": None, "problem": problem, "committed": stored,
                }  # fmt: skip
            except OtherFormat as other:
                raise InputError(
                    f"{folder.path(step)} is another version's: {other}; go on with that version, or name another "
                    "output.folder to start from step 0"
                ) from None
            except Damaged as damage:
                self._set_aside(step, str(damage))
                continue
            except OSError as error:
                raise unreadable([f"rank 0 {words(error)}"]) from error
            self._tell_lost(step, attempt)
            return {"memory": False, "step": step, "record": asdict(record), "committed": stored}
        damaged = [entry.path.name for entry in folder.entries() if entry.state == "damaged"]
        if damaged:
            raise RunError(
                f"none of the checkpoints in {folder.root} loads (set aside: {', '.join(damaged)}); repair one and "
                f"take its suffix away, or name another output.folder to start from step 0",
                ExitCode.NO_LOADABLE_CHECKPOINT,
            )
        return {"memory": False, "step": 0, "committed": []}

    def _past_end(self, step: int, stored: list[int]) -> bool:
        if self._run is None:
            return False
        check = partial(self._run.check_end, step, stored, self._folder.root)
        return patiently(check, self._folder.path(self._run.steps), self._rest, self._tell)

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

    def _agree_to_start_anew(self, attempt: int) -> None:
        """Rank 0 sees no checkpoint. On a node that has not mounted the folder that means nothing: ask all."""
        timeout = self._timeout
        try:
            stored = patiently(self._folder.committed, self._folder.root, self._rest, self._tell, may_pass)
            seen: dict[str, Any] = {"newest": stored[-1].path.name if stored else None}
        except OSError as error:
            seen = {"cannot": words(error)}
        seen["node"] = os.uname().nodename
        views = self._exchange.gather(f"restore/{attempt}/seen", seen, timeout, "the folder of checkpoints")
        cannot = [f"rank {rank} {view['cannot']}" for rank, view in enumerate(views) if "cannot" in view]
        if cannot:
            raise unreadable(cannot)
        for rank, view in enumerate(views):
            if view["newest"] is not None:
                what = f"rank 0 ({views[0]['node']}) does not see {self._folder.root / view['newest']}"
                raise unreadable([f"{what}, rank {rank} ({view['node']}) does"])
        if self._run is not None:
            check = partial(self._run.check_empty, self._folder.root)
            self._exchange.decide(f"restore/{attempt}/anew", check, timeout, "the start at step 0")

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
                remedy="for another run name another output.folder",
            )

    def _from_storage(self, step: int, described: dict[str, Any] | None) -> dict[str, Any] | None:
        """Read and verify this rank's share; None, or what is the `damage`, or what this rank `cannot` read.

        `files` of the damage are those that every rank should see as wrong. Where rank 0 has no record to describe the
        checkpoint with, to see the record is all that is asked.
        """
        path = self._folder.path(step)
        try:
            patiently(partial(self._folder.look, step), path, self._rest, self._tell)
            if described is None:
                patiently(partial(look_for_record, path), path, self._rest, self._tell)
            else:
                self._read(path, CommitRecord(**described))
        except WrongFiles as wrong:
            return _problem_of(wrong)
        except Damaged as damage:
            return {"damage": str(damage)}
        except OSError as error:
            return {"cannot": words(error)}
        return None

    def _read(self, path: Path, record: CommitRecord) -> None:
        rank, world_size = self._exchange.rank, self._exchange.world_size
        same = record.world_size == world_size and len(record.data) > rank
        self._wait_for_room()
        buffer = self._staging.load_begin()
        try:
            loader.load(
                path,
                record,
                self._staging.layout,
                self._staging.buffers.memory_of(buffer),
                rank,
                world_size,
                full=self._section.verify == "full",
                threads=max(4, self._section.writer_threads),
                beat=self._beat,
                told=self._tell,
            )
        except (Damaged, OSError):
            self._staging.buffers.forget(buffer)
            raise
        self._staging.load_end(buffer, record.step, record.data[rank] if same else {})

    def _rest(self, seconds: float) -> None:
        loader.rest(seconds, self._beat)

    def _tell(self, error: OSError) -> None:
        self._log.warning("storage cannot be read, tried again", path=error.filename, reason=error.strerror)

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


def _problem_of(wrong: WrongFiles) -> dict[str, Any]:
    return {"damage": str(wrong), "files": wrong.files, "node": os.uname().nodename}


def _seen_otherwise(folder: Path, problems: list[dict[str, Any] | None]) -> list[str]:
    """Ranks that see a file as wrong which another rank sees otherwise: of a damaged checkpoint all see the same."""
    views: list[dict[str, str]] = [(problem or {}).get("files", {}) for problem in problems]
    for rank, (problem, view) in enumerate(zip(problems, views, strict=True)):
        for name, what in view.items():
            other = next((other for other, others in enumerate(views) if others.get(name) != what), None)
            if problem is not None and other is not None:
                return [
                    f"rank {rank} ({problem['node']}) finds that {folder}/{what}, and rank {other} does not"
                ]
    return []
