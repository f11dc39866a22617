"""A recipe as written: a tree of values that know the file, line and column they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Path = tuple[str | int, ...]


class Position(NamedTuple):
    """Where something is written. Lines and columns count from 1, columns in characters."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Doubtful(str):
    """An unquoted scalar that YAML readers disagree about: `no`, `0755`, `1:30:00`, `None`, `nan`.

    The text is kept as written. It is no value of any type, save where a field lists this very text as a choice.
    """

    __slots__ = ()


class Unknown(Doubtful):
    """A value that is not known because its variable is unset; reported once already."""

    __slots__ = ()


class Entry(NamedTuple):
    """One `key: value` of a mapping."""

    key_at: Position
    node: Node


class Node:
    """One value.

    Attributes:
        value: a scalar (str, int, float, bool, None, `Doubtful`), a `dict[str, Entry]` or a `list[Node]`.
        at: where the value is written.
        raw: the text of a scalar as written, quotes included.
        size: number of values below and including this one, aliases counted each time they are used.
        replaces: tagged `!replace`: stands instead of the extended recipe's mapping, not merged into it.
    """

    __slots__ = ("at", "raw", "replaces", "size", "value")

    def __init__(
        self, value: Any, at: Position, raw: str = "", size: int = 1, replaces: bool = False
    ) -> None:
        self.value = value
        self.at = at
        self.raw = raw
        self.size = size
        self.replaces = replaces

    def child(self, key: str | int) -> Node | None:
        """The value under a key or index, or None."""
        if isinstance(self.value, dict):
            entry = self.value.get(key)
            return entry.node if entry else None
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]
        return None

    def plain(self) -> Any:
        """The value as dicts, lists and scalars, as PyYAML would give it."""
        if isinstance(self.value, dict):
            return {key: entry.node.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Every value below and including this one, with its path."""
        yield path, self
        if isinstance(self.value, dict):
            for key, entry in self.value.items():
                yield from entry.node.walk((*path, key))
        elif isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield from item.walk((*path, index))


def dotted(path: Path) -> str:
    """`training.optimizer.betas[1]`; the empty path is the recipe itself."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def find(root: Node, path: Path) -> Node | None:
    """The value at `path` where it is written."""
    node: Node | None = root
    for part in path:
        node = node.child(part) if node else None
    return node


def locate(root: Node, path: Path, *, key: bool = False) -> Position:
    """Where `path` is written; where it is not, the nearest enclosing key.

    Args:
        root: the recipe.
        path: of the value.
        key: prefer the key over the value.
    """
    node, at = root, root.at
    for depth, part in enumerate(path):
        entry = node.value.get(part) if isinstance(node.value, dict) else None
        if entry is not None:
            node = entry.node
            at = entry.key_at if key or depth < len(path) - 1 else node.at
            continue
        below = node.child(part)
        if below is None:
            break
        node, at = below, below.at
    return at
