"""The strict YAML loader: text to a tree of values with positions.

A subset of YAML 1.2: one document, a mapping at the top, text keys, no tags but `!replace`. Built on PyYAML's event
stream rather than its constructor, so that duplicate keys, depth and the growth of aliases are seen before anything
is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runner.recipe.node import Entry, Node, Position, Unknown, dotted
from runner.recipe.problems import Problem, RecipeErrors
from runner.recipe.scalars import UnsetVariable, expand, read_plain
from runner.recipe.text import control_character, decode, fatal, printable, read_regular, syntax_error

LARGEST_FILE = 1 << 20
DEEPEST = 40
MOST_VALUES = 20_000
_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class Form(NamedTuple):
    """What a file is to be: the word for it, and what stands at its top."""

    word: str
    top: str


RECIPE = Form(
    "recipe", "a mapping of sections: name, model, dataset, sharding, training, checkpoint, recovery, ..."
)


def read_file(
    path: Path, name: str, environment: Mapping[str, str] | None = None, form: Form = RECIPE
) -> tuple[Node, list[Problem]]:
    """Read one file, a recipe by default.

    Args:
        path: the file.
        name: how messages call it.
        environment: for `${VAR}`; the process's own by default.
        form: what the file is to be.

    Returns:
        The top mapping, and the problems that do not keep the rest from being checked.

    Raises:
        RecipeErrors: nothing can be made of the file; one problem.
    """
    try:
        data = read_regular(path, LARGEST_FILE + 1)
    except IsADirectoryError as error:
        raise fatal(
            "Y100", name, 0, 0, f"cannot be read: {error.strerror}", f"name a {form.word} in it"
        ) from None
    except OSError as error:
        remedy = "check the path" if name != "-" else "standard input has the name /dev/stdin"
        raise fatal("Y100", name, 0, 0, f"cannot be read: {error.strerror}", remedy) from None
    return read_bytes(data, name, environment, form)


def read_bytes(
    data: bytes, name: str, environment: Mapping[str, str] | None = None, form: Form = RECIPE
) -> tuple[Node, list[Problem]]:
    """`read_file` for bytes at hand."""
    if len(data) > LARGEST_FILE:
        raise fatal("Y108", name, 0, 0, f"is larger than {LARGEST_FILE} bytes, which no {form.word} is")
    text = decode(data, name)
    composer = _Composer(text, name, environment, form)
    return composer.document(), composer.problems


def _is_suite(entries: Mapping[str, Entry]) -> bool:
    return "experiments" in entries and "model" not in entries


class _Composer:
    """Builds the tree from PyYAML's events."""

    def __init__(self, text: str, name: str, environment: Mapping[str, str] | None, form: Form) -> None:
        self.text = text
        self.form = form
        self.name = name
        self.environment = environment
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}  # None while its own value is still being read
        self.path: list[str | int] = []
        self.loader = _Loader(text)
        self._next: Callable[[], Any] = self.loader.get_event

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
            raise fatal("Y103", self.name, 1, 1, "is empty", expected=self.form.top)
        self._next()  # document start
        root = self._node()
        self._next()  # document end
        if not self.loader.check_event(yaml.StreamEndEvent):
            at = self._at(self.loader.peek_event())
            raise self._fatal("Y104", at, "holds several documents", "keep one, without `---` inside")
        if self.form is RECIPE and isinstance(root.value, dict) and _is_suite(root.value):
            at = root.value["experiments"].key_at
            raise self._fatal(
                "Y105", at, "is a suite of nvrx-bench, not a recipe", "nvrx-bench --list checks it"
            )
        if root.value is None:
            raise fatal("Y103", self.name, 1, 1, "is empty", expected=self.form.top)
        if not isinstance(root.value, dict):
            kind = "a list" if isinstance(root.value, list) else "a single value"
            raise self._fatal("Y105", root.at, f"holds {kind} at the top", expected=self.form.top)
        return root

    def _at(self, event: Any) -> Position:
        start, end = event.start_mark, event.end_mark
        return Position(self.name, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _fatal(
        self, code: str, at: Position, message: str, hint: str | None = None, expected: str | None = None
    ) -> RecipeErrors:
        return fatal(code, self.name, at.line, at.column, message, hint, expected)

    def _problem(
        self, code: str, at: Position, message: str, *, value: str | None = None, **more: Any
    ) -> None:
        value = None if value is None else printable(value)
        self.problems.append(Problem(code, at, dotted(tuple(self.path)), printable(message), value, **more))

    def _node(self) -> Node:
        event = self._next()
        at = self._at(event)
        if len(self.path) > DEEPEST:
            raise self._fatal("Y107", at, f"is nested deeper than {DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, at)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        replaces = self._tag(event, at)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, at)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, at)
        else:
            node = self._mapping(event, at)
        node.replaces = replaces
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str | None, at: Position) -> Node:
        if anchor is None or anchor not in self.anchors:
            raise self._fatal("Y106", at, f"`*{anchor}` names no anchor before it")
        node = self.anchors[anchor]
        if node is None:
            raise self._fatal("Y106", at, f"`*{anchor}` contains itself")
        return Node(node.value, at, node.raw, node.size, node.replaces)

    def _tag(self, event: Any, at: Position) -> bool:
        if event.tag in (None, "!"):
            return False
        if event.tag == "!replace" and isinstance(event, yaml.MappingStartEvent):
            return True
        hint = "delete it (only `!replace` before a mapping)"
        self._problem("Y109", at, f"tag `{event.tag[:40]}` is not allowed", hint=hint)
        return False

    def _scalar(self, event: Any, at: Position) -> Node:
        plain = event.style in (None, "")
        raw = event.value if plain else self.text[event.start_mark.index : event.end_mark.index].strip()
        try:
            text = expand(event.value, self.environment)
        except UnsetVariable as error:
            hint = "set it, or give a default: `${NAME:-default}`"
            self._problem("Y110", at, str(error), value=raw, hint=hint)
            return Node(Unknown(event.value), at, raw)
        except ValueError as error:
            self._problem("Y111", at, str(error), value=raw, hint="write `$${` for a literal `${`")
            return Node(Unknown(event.value), at, raw)
        if self._holds_control(text, at, raw):
            return Node(Unknown(event.value), at, raw)
        if not plain or (
            text == "" and event.value
        ):  # a variable that is set and empty is empty text, not null
            return Node(text, at, raw)
        return Node(read_plain(text), at, raw)

    def _holds_control(self, text: str, at: Position, raw: str) -> bool:
        """Whether a text holds, through an escape (`"\\0"`) or a variable, what no setting can mean."""
        odd = control_character(text)
        if odd is not None:
            message = f"the text holds the control character U+{ord(odd):04X}"
            hint = "delete it; only line breaks and tabs may be in a text"
            self._problem("Y102", at, message, value=raw, hint=hint)
        return odd is not None

    def _sequence(self, event: Any, at: Position) -> Node:
        items: list[Node] = []
        size = 1
        while not self.loader.check_event(yaml.SequenceEndEvent):
            self.path.append(len(items))
            items.append(self._node())
            self.path.pop()
            size = self._grown(size, items[-1], at)
        return Node(items, self._whole(event, at), size=size)

    def _mapping(self, event: Any, at: Position) -> Node:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        size = 1
        while not self.loader.check_event(yaml.MappingEndEvent):
            key, key_at = self._key()
            self.path.append("<<" if key is None else printable(key))
            if key is not None and self._holds_control(key, key_at, key):
                key = printable(key)
            node = self._node()
            size = self._grown(size, node, at)
            if key is None:
                self._merge(node, key_at, merged)
            elif key in entries:
                first = entries[key].key_at
                message = f"key `{key}` is given twice, first at line {first.line}"
                self._problem("Y112", key_at, message, hint="delete one of them", also=first)
            else:
                entries[key] = Entry(key_at, node)
            self.path.pop()
        for key, entry in merged.items():
            entries.setdefault(key, entry)
        return Node(entries, self._whole(event, at), size=size)

    def _grown(self, size: int, node: Node, at: Position) -> int:
        """The size with one value more; aliases make it grow faster than the file does."""
        if size + node.size > MOST_VALUES:
            raise self._fatal("Y108", at, f"holds more than {MOST_VALUES} values, aliases counted each time")
        return size + node.size

    def _whole(self, event: Any, at: Position) -> Position:
        """From the start of a mapping or list to its end, where brackets show it."""
        end = self._at(self._next())
        return at._replace(end_line=end.end_line, end_column=end.end_column) if event.flow_style else at

    def _key(self) -> tuple[str | None, Position]:
        """A mapping's key, always the text that is written; None for `<<`. Keys are not expanded."""
        event = self.loader.peek_event()
        if isinstance(event, yaml.ScalarEvent):
            self._next()
            at = self._at(event)
            if event.anchor is not None:
                self.anchors[event.anchor] = Node(event.value, at, event.value)
            self._tag(event, at)
            return None if event.value == "<<" and event.style in (None, "") else event.value, at
        at = self._at(event)
        node = self._node() if isinstance(event, yaml.AliasEvent) else None
        if node is None or not isinstance(node.value, str):
            raise self._fatal("Y113", at, "a key must be a single word", "check the indentation and braces")
        return str(node.value), at

    def _merge(self, node: Node, at: Position, merged: dict[str, Entry]) -> None:
        """`<<`: the keys of one mapping or several, of which the first wins."""
        sources = node.value if isinstance(node.value, list) else [node]
        if not all(isinstance(source.value, dict) for source in sources):
            message = "`<<` merges a mapping or a list of mappings"
            self._problem("Y114", at, message, value=node.raw or None)
            return
        for source in sources:
            for key, entry in source.value.items():
                merged.setdefault(key, entry)
