"""One save, from the writer's last byte to the commit: a thread per rank, no collectives, every wait bounded.

    every rank:  wait for its own writer -> publish its part (files, checksums, streaming state)
    rank 0:      gather the parts -> commit record and `.metadata` -> fsync -> rename
    every rank:  learn the outcome, which is one value for all

The outcome is written once: by rank 0 when it has committed, or by the first rank that failed.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from runner.checkpoint.exchange import Exchange
from runner.checkpoint.folder import CheckpointFolder
from runner.checkpoint.metadata import dcp_metadata
from runner.checkpoint.record import METADATA, CommitRecord, write_record
from runner.checkpoint.writer import checksum, explain
from runner.recipe.checkpoint import CheckpointSection
from runner.system.durable import write_durably
from runner.train.ports import Life

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_SIGHT = 5.0  # seconds until a file that a peer has written must be seen
PEERS_PATIENCE = timedelta(
    seconds=30
)  # beyond `write_timeout`: the time to say that a peer's write timed out


@dataclass(frozen=True)
class Outcome:
    """How a save ended, the same on all ranks."""

    step: int
    path: Path
    reason: str | None  # None: committed
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def committed(self) -> bool:
        """Whether the checkpoint exists."""
        return self.reason is None


@dataclass(frozen=True)
class SaveContext:
    """What all saves of a life have in common."""

    life: Life
    section: CheckpointSection
    folder: CheckpointFolder
    fingerprint: str
    tensors: dict[str, list[Any]]
    decided: dict[str, Any]
    committed: Callable[[], None]  # called on rank 0 after a commit, in the save's thread; must not block
    failed: list[Path] = field(
        default_factory=list
    )  # rank 0: folders of failed saves that may still be there

    def clear_up(self) -> None:
        """Remove what failed saves have left: room for the next. A peer may still be writing there, so again later."""
        for partial in list(self.failed):
            shutil.rmtree(partial, ignore_errors=True)
            if not partial.exists():
                self.failed.remove(partial)


class SaveJob(threading.Thread):
    """Follows one save to its end. `outcome` is set when there is one; an abandoned save has none.

    Nor has one whose store is gone: the process that serves it has died, and with it the life. Then `lost` says so. It
    is no failure of the save: whoever mends the life tries again.

    Args:
        own_part: called repeatedly; returns this rank's files (`writer.describe`) once they are written, None
            while they are being written, and raises where that failed.
    """

    def __init__(
        self,
        context: SaveContext,
        step: int,
        partial: Path,
        data: dict[str, Any],
        own_part: Callable[[], list[dict[str, Any]] | None],
    ) -> None:
        super().__init__(name=f"save-step-{step}", daemon=True)
        self.step = step
        self.partial = partial
        self.outcome: Outcome | None = None
        self.lost: dist.DistError | None = None
        self.write_finished = threading.Event()
        self.started = time.monotonic()
        self._context = context
        self._data = data
        self._own_part = own_part
        self._abandoned = threading.Event()
        self._exchange = Exchange(context.life, lambda: None)
        self._topic = f"save/{partial.name}"

    def abandon(self) -> None:
        """This save shall not commit. Does not block."""
        self._abandoned.set()

    def run(self) -> None:
        """The thread: never raises; what goes wrong becomes the outcome."""
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - becomes the outcome that every rank raises or logs
            if self._abandoned.is_set():  # the end of a life takes its store away
                return
            if isinstance(error, dist.DistError):
                self.lost = error
                return
            text = str(error) if isinstance(error, SaveError) else explain(error)
            reason = f"rank {self._exchange.rank}: {text}"
            try:
                self._conclude({"reason": reason})
            except Exception as lost:  # noqa: BLE001 - no peer can be told any more; this rank is
                reason = f"{reason}; the other ranks cannot be told: {explain(lost)}"
                self.outcome = Outcome(self.step, self.partial, reason, 0, time.monotonic() - self.started)

    def _follow(self) -> None:
        section = self._context.section
        if self._exchange.rank == 0:
            self._context.clear_up()
        deadline = self.started + section.write_timeout.total_seconds()
        part = self._poll(
            self._own_part, deadline, f"this rank's write took longer than {section.write_timeout}"
        )
        if part is None:
            return
        self.write_finished.set()
        rank = self._exchange.rank
        self._exchange.put(f"{self._topic}/part/{rank}", {"files": part, "data": self._data})
        deadline += PEERS_PATIENCE.total_seconds()
        if rank == 0:
            parts = []
            for peer in range(self._exchange.world_size):
                key = f"{self._topic}/part/{peer}"
                late = f"rank {peer}'s part did not come within {section.write_timeout}"
                got = self._poll(lambda key=key: self._exchange.peek(key), deadline, late)  # type: ignore[misc]
                if got is None:
                    return
                parts.append(got)
            self._commit(parts)
            return
        late = f"rank 0 did not commit within {section.write_timeout + PEERS_PATIENCE}"
        self._poll(lambda: None, deadline, late)

    def _poll(self, look: Callable[[], Any], deadline: float, late: str) -> Any:
        """What `look` finds; None where the save is over (its outcome is known, or it was abandoned)."""
        pause = _FIRST_PAUSE
        while not self._abandoned.is_set():
            outcome = self._exchange.peek_first(f"{self._topic}/outcome")
            if outcome is not None:
                self._conclude(outcome)
                return None
            found = look()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise SaveError(late)
            self._abandoned.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return None

    def _commit(self, parts: list[dict[str, Any]]) -> None:
        """Rank 0: record, sync, rename, in that order; then what a commit makes due."""
        context = self._context
        files = [dict(file) for part in parts for file in part["files"]]
        metadata = self.partial / METADATA
        self.partial.mkdir(parents=True, exist_ok=True)
        write_durably(metadata, dcp_metadata(context.tensors, files))
        self._look_for(files)
        described = {
            "name": METADATA,
            "size": metadata.stat().st_size,
            "xxh3_128": checksum(metadata),
            "items": [],
        }
        record = CommitRecord(
            step=self.step,
            world_size=self._exchange.world_size,
            fingerprint=context.fingerprint,
            created=time.time(),
            mode=context.section.mode,
            versions=_versions(),
            files=[*files, described],
            tensors=context.tensors,
            data=[part["data"] for part in parts],
            decided=context.decided,
        )
        write_record(self.partial, record)
        if self._abandoned.is_set():
            return
        with context.life.atomic():  # a restart waits for the rename, and after its freeze there is none
            if self._abandoned.is_set():
                return
            context.folder.commit(self.partial, self.step)
        for rank in range(len(parts)):  # they would pile up in the store's memory
            self._exchange.drop(f"{self._topic}/part/{rank}")
        seconds = time.monotonic() - self.started
        self._conclude({"reason": None, "bytes": record.nbytes, "seconds": seconds})
        context.committed()

    def _look_for(self, files: list[dict[str, Any]]) -> None:
        """What the ranks say that they have written must be there: somebody may have cleared up in this folder.

        Raises:
            SaveError: a file is missing or has another size.
        """
        end = time.monotonic() + _SIGHT  # a shared file system may show another node's file late
        for file in files:
            path = self.partial / file["name"]
            while (size := _size(path)) != file["size"]:
                if time.monotonic() > end or self._abandoned.is_set():
                    now = "is missing" if size is None else f"has {size} bytes, not {file['size']}"
                    raise SaveError(
                        f"{path} {now} although it was written; does another program clear up here?"
                    )
                time.sleep(_LONGEST_PAUSE)

    def _conclude(self, outcome: dict[str, Any]) -> None:
        """Agree on the outcome: the first one written counts."""
        agreed = self._exchange.put_first(f"{self._topic}/outcome", outcome)
        committed = agreed["reason"] is None
        if not committed and self._exchange.rank == 0:
            self._context.failed.append(self.partial)
            self._context.clear_up()
        self.outcome = Outcome(
            step=self.step,
            path=self._context.folder.path(self.step) if committed else self.partial,
            reason=agreed["reason"],
            nbytes=agreed.get("bytes", 0),
            seconds=agreed.get("seconds", time.monotonic() - self.started),
        )


class SaveError(Exception):
    """A save failed for a reason that the text gives in full."""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _versions() -> dict[str, str]:
    names = ("nvrx-run", "torch", "nvidia-resiliency-ext")
    return {name: importlib.metadata.version(name) for name in names} | {"python": platform.python_version()}
