"""Follows a run's ledger while it is written."""

from __future__ import annotations

from pathlib import Path

from runner.ledger.codec import Stamp, decode_lines
from runner.ledger.events import Event
from runner.ledger.rollup import is_folded, ledger_files


class Follower:
    """Hands out each line of a run's ledger once, soon after it was written.

    Args:
        folder: the run's folder. Its ledger may not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._first = True
        self.unreadable = 0

    def poll(self) -> list[tuple[Event, Stamp]]:
        """What is new since the last call (at the first: all there is), in the order of the wall clock.

        A line that is not finished yet waits for the next call.
        """
        items: list[tuple[Event, Stamp]] = []
        for path in ledger_files(self._folder):
            if path.name.endswith(".history.jsonl"):
                # Segments are folded into it long after they were read; only at the first call it is news.
                if self._first:
                    items += self._decode(path.read_bytes().split(b"\n")[1:])
                continue
            if self._first and is_folded(path):
                continue
            items += self._decode(self._new_lines(path))
        self._first = False
        items.sort(key=lambda item: item[1].t)
        return items

    def _new_lines(self, path: Path) -> list[bytes]:
        offset = self._offsets.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:  # folded meanwhile
            return []
        end = data.rfind(b"\n") + 1
        self._offsets[path.name] = offset + end
        return data[:end].split(b"\n")

    def _decode(self, lines: list[bytes]) -> list[tuple[Event, Stamp]]:
        read = decode_lines(lines)
        self.unreadable += read.unreadable
        return read.items
