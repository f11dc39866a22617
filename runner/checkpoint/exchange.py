"""Small agreements between ranks over the life's store: bounded, interruptible, and without collectives."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from runner.checkpoint.patience import refused
from runner.errors import ExitCode, PeerMissingError, RunError
from runner.train.ports import Life

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.01


class Exchange:
    """Keys below `checkpoint/` in the store of one life.

    Waiting is polling: a blocking wait inside the store cannot be interrupted by a restart.

    Args:
        beat: called while waiting, so that a legitimate wait does not look like a hang.
    """

    def __init__(self, life: Life, beat: Callable[[], None]) -> None:
        self.rank = life.rank
        self.world_size = life.world_size
        self._store = life.store
        self._beat = beat

    def put(self, key: str, value: Any) -> None:
        """Publish a JSON value."""
        payload: Any = zlib.compress(
            json.dumps(value).encode(), 1
        )  # bytes: fine for a store, missing in its stub
        self._store.set(f"checkpoint/{key}", payload)

    def drop(self, key: str) -> None:
        """Forget a key that nobody will ask for again."""
        self._store.delete_key(f"checkpoint/{key}")

    def put_first(self, key: str, value: Any) -> Any:
        """Publish a JSON value unless the key has one; returns the one that it has."""
        payload = json.dumps(value)
        return json.loads(self._store.compare_set(f"checkpoint/{key}", "", payload))

    def peek_first(self, key: str) -> Any:
        """The value of a key written by `put_first`, None where there is none yet."""
        name = f"checkpoint/{key}"
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def peek(self, key: str) -> Any:
        """The value of a key, None where there is none yet."""
        name = f"checkpoint/{key}"
        return json.loads(zlib.decompress(self._store.get(name))) if self._store.check([name]) else None

    def wait(self, key: str, timeout: timedelta, what: str) -> Any:
        """The value of a key as soon as there is one.

        Raises:
            PeerMissingError: none within `timeout`.
        """
        end = time.monotonic() + timeout.total_seconds()
        pause = _FIRST_PAUSE
        while True:
            value = self.peek(key)
            if value is not None:
                return value
            if time.monotonic() > end:
                raise PeerMissingError(f"checkpoint: rank {self.rank} waited {timeout} for {what} in vain")
            self._beat()
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def gather(self, topic: str, value: Any, timeout: timedelta, what: str) -> list[Any]:
        """Publish `value` and return every rank's, by rank. All ranks call it."""
        self.put(f"{topic}/{self.rank}", [value])
        return [
            value if rank == self.rank else self.wait(f"{topic}/{rank}", timeout, f"{what} of rank {rank}")[0]
            for rank in range(self.world_size)
        ]

    def decide(self, topic: str, choose: Callable[[], Any], timeout: timedelta, what: str) -> Any:
        """Rank 0 calls `choose`; all ranks return its answer, or raise its error. All ranks call it.

        Raises:
            RunError: what `choose` raised on rank 0 (an `OSError` too, with its text).
        """
        if self.rank == 0:
            try:
                answer = {"value": choose()}
            except RunError as error:
                answer = {"error": str(error), "code": int(error.exit_code)}
            except OSError as error:
                refusal = refused(error)
                answer = {"error": str(refusal), "code": int(refusal.exit_code)}
            self.put(topic, answer)
        else:
            answer = self.wait(topic, timeout, what)
        if "error" in answer:
            raise RunError(answer["error"], ExitCode(answer["code"]))
        return answer["value"]
