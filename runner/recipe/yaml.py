"""The strict YAML loader: text to a tree of values with positions.

A subset of YAML 1.2: one document, a mapping at the top, text keys, no tags but `!replace`. Built on PyYAML's event
stream rather than its constructor, so that duplicate keys, depth and the growth of aliases are seen before anything
is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.recipe.node import Doubtful, Entry, Node, Position, Unknown
from runner.recipe.problems import Problem
from runner.recipe.scalars import UnsetVariable, expand, read_plain
from runner.recipe.text import decode, fatal, syntax_error

LARGEST_FILE = 1 << 20
DEEPEST = 40
MOST_VALUES = 20_000
_TOP = "a mapping of sections: name, model, dataset, sharding, training, checkpoint, recovery, ..."
_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_file(
    path: Path, name: str, environment: Mapping[str, str] | None = None
) -> tuple[Node, list[Problem]]:
    """Read one recipe file.

    Args:
        path: the file.
        name: how messages call it.
        environment: for `${VAR}`; the process's own by default.

    Returns:
        The top mapping, and the problems that do not keep the rest from being checked.

    Raises:
        RecipeErrors: nothing can be made of the file; one problem.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise fatal("Y100", name, 0, 0, f"cannot be read: {error.strerror}", "check the path") from None
    return read_bytes(data, name, environment)


def read_bytes(
    data: bytes, name: str, environment: Mapping[str, str] | None = None
) -> tuple[Node, list[Problem]]:
    """`read_file` for bytes at hand."""
    if len(data) > LARGEST_FILE:
        raise fatal("Y108", name, 0, 0, f"is larger than {LARGEST_FILE} bytes, which no recipe is")
    text = decode(data, name)
    composer = _Composer(text, name, environment)
    return composer.document(), composer.problems


class _Composer:
    """Builds the tree from PyYAML's events."""

    def __init__(self, text: str, name: str, environment: Mapping[str, str] | None) -> None:
        self.text = text
        self.name = name
        self.environment = environment
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}  # None while its own value is still being read
        self.loader = _Loader(text)

    def document(self) -> Node:
        """The only document, a mapping."""
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            raise syntax_error(error, self.text, self.name) from None
        except yaml.reader.ReaderError as error:
            raise fatal("Y102", self.name, 0, 0, f"cannot be read as YAML: {error.reason}") from None
        finally:
            self.loader.dispose()

    def _document(self) -> Node:
        self._next()  # stream start
        if self.loader.check_event(yaml.StreamEndEvent):
            raise fatal("Y103", self.name, 1, 1, "is empty", expected=_TOP)
        self._next()  # document start
        root = self._node(0)
        self._next()  # document end
        if not self.loader.check_event(yaml.StreamEndEvent):
            at = self._at(self.loader.peek_event())
            raise fatal(
                "Y104",
                self.name,
                at.line,
                at.column,
                "holds several documents",
                "keep one, without `---` inside",
            )
        if root.value is None:
            raise fatal("Y103", self.name, 1, 1, "is empty", expected=_TOP)
        if not isinstance(root.value, dict):
            kind = "a list" if isinstance(root.value, list) else "a single value"
            raise fatal(
                "Y105", self.name, root.at.line, root.at.column, f"holds {kind} at the top", expected=_TOP
            )
        return root

    def _next(self) -> Any:
        return self.loader.get_event()

    def _at(self, event: Any) -> Position:
        start, end = event.start_mark, event.end_mark
        return Position(self.name, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _node(self, depth: int) -> Node:
        event = self._next()
        at = self._at(event)
        if depth > DEEPEST:
            raise fatal("Y107", self.name, at.line, at.column, f"is nested deeper than {DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise fatal(
                    "Y106", self.name, at.line, at.column, f"`*{event.anchor}` names no anchor before it"
                )
            node = self.anchors[event.anchor]
            if node is None:
                raise fatal("Y106", self.name, at.line, at.column, f"`*{event.anchor}` contains itself")
            return Node(node.value, at, node.raw, node.size, node.replaces)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        replaces = self._tag(event, at)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, at)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(at, depth)
        else:
            node = self._mapping(at, depth)
        node.replaces = replaces
        if node.size > MOST_VALUES:
            raise fatal("Y108", self.name, at.line, at.column, f"holds more than {MOST_VALUES} values")
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _tag(self, event: Any, at: Position) -> bool:
        if event.tag in (None, "!"):
            return False
        if event.tag == "!replace" and isinstance(event, yaml.MappingStartEvent):
            return True
        self.problems.append(
            Problem(
                "Y109",
                at,
                "",
                f"tag `{event.tag}` is not allowed",
                hint="delete it (only `!replace` before a mapping)",
            )
        )
        return False

    def _scalar(self, event: Any, at: Position) -> Node:
        plain = event.style is None or event.style == ""
        raw = self.text[event.start_mark.index : event.end_mark.index] if not plain else event.value
        text = event.value
        try:
            text = expand(text, self.environment)
        except ValueError as error:
            unset = isinstance(error, UnsetVariable)
            hint = (
                "set it, or give a default: `${NAME:-default}`" if unset else "write `$${` for a literal `${`"
            )
            self.problems.append(
                Problem("Y110" if unset else "Y111", at, "", str(error), value=raw, hint=hint)
            )
            return Node(Unknown(text), at, raw)
        if not plain:
            return Node(text, at, raw.strip())
        if text == "" and event.value:
            return Node("", at, raw)  # a variable that is set and empty is empty text, not null
        return Node(read_plain(text), at, raw)

    def _sequence(self, at: Position, depth: int) -> Node:
        items = []
        size = 1
        while not self.loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
            size += items[-1].size
            if size > MOST_VALUES:
                raise fatal("Y108", self.name, at.line, at.column, f"holds more than {MOST_VALUES} values")
        self._next()
        return Node(items, at, size=size)

    def _mapping(self, at: Position, depth: int) -> Node:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        size = 1
        while not self.loader.check_event(yaml.MappingEndEvent):
            key, key_at = self._key(depth)
            node = self._node(depth + 1)
            size += node.size
            if size > MOST_VALUES:
                raise fatal("Y108", self.name, at.line, at.column, f"holds more than {MOST_VALUES} values")
            if key is None:
                self._merge(node, key_at, merged)
            elif key in entries:
                first = entries[key].key_at
                self.problems.append(
                    Problem(
                        "Y112", key_at, key, f"key `{key}` is given twice, first at line {first.line}",
                        hint="delete one of them", also=first,
                    )
                )  # fmt: skip
            else:
                entries[key] = Entry(key_at, node)
        self._next()
        for key, entry in merged.items():
            entries.setdefault(key, entry)
        return Node(entries, at, size=size)

    def _key(self, depth: int) -> tuple[str | None, Position]:
        """A mapping's key; None for `<<`."""
        event = self.loader.peek_event()
        node = self._node(depth + 1)
        plain = isinstance(event, yaml.ScalarEvent) and event.style in (None, "")
        if plain and event.value == "<<":
            return None, node.at
        if isinstance(node.value, Doubtful) or (
            isinstance(event, yaml.ScalarEvent) and not isinstance(node.value, str)
        ):
            return event.value, node.at  # `no:` or `8:` is the text it is written as
        if isinstance(node.value, str):
            return str(node.value), node.at
        raise fatal(
            "Y113",
            self.name,
            node.at.line,
            node.at.column,
            "a key must be a single word",
            "check the indentation and braces",
        )

    def _merge(self, node: Node, at: Position, merged: dict[str, Entry]) -> None:
        sources = node.value if isinstance(node.value, list) else [node]
        if not all(isinstance(source.value, dict) for source in sources):
            self.problems.append(
                Problem("Y114", at, "", "`<<` merges a mapping or a list of mappings", value=node.raw or None)
            )
            return
        for source in sources:
            for key, entry in source.value.items():
                merged.setdefault(key, entry)
