"""A tree of values against the sections' table: every type, range, choice and key, all problems at once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from runner.recipe.node import Doubtful, Entry, Node, Path, Position, Unknown, dotted, locate
from runner.recipe.problems import Problem
from runner.recipe.table import Table, Type
from runner.recipe.units import TooLargeError, parse_duration, parse_size
from runner.recipe.view import BAD, View
from runner.recipe.words import (
    LARGEST_INT,
    choice_hint,
    choices_text,
    close_matches,
    describe,
    doubt_hint,
    listed,
    misfit,
    nearest_choice,
    number_hint,
    short,
    shown,
    unit_hint,
)


class TypeChecker:
    """Walks the tree once; problems are gathered in `problems`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.problems: list[Problem] = []
        self.root: Node

    def recipe(self, root: Node) -> View:
        """The recipe with defaults; what is wrong in it is `BAD`, and said in `problems`."""
        self.root = root
        view: View = self._mapping(root, "Recipe", ())
        return view

    # -- sections ---------------------------------------------------------------------------------------------

    def _mapping(self, node: Node, name: str, path: Path, variant: tuple[str, Any] | None = None) -> Any:
        if not isinstance(node.value, dict):
            hint = (
                f"write {{name: {node.raw}}}"
                if "name" in self.table[name] and isinstance(node.value, str)
                else None
            )
            return self._wrong(node, path, self._describe(("section", name)), hint)
        fields = self.table[name]
        values: dict[str, Any] = {}
        for key, entry in node.value.items():
            if key not in fields:
                meant = self._unknown_key(key, entry, name, path, variant)
                if meant is not None and meant not in node.value:
                    values[meant] = BAD
            elif variant is not None and key == variant[0]:
                values[key] = variant[1]
            else:
                values[key] = self.value(entry.node, fields[key][0], (*path, key))
        for key, (kind, default) in fields.items():
            if default is None and key not in values:
                self._missing(key, kind, node, path)
                values[key] = BAD
        return self._view(name, values)

    def _view(self, name: str, values: dict[str, Any]) -> View:
        given = frozenset(values)
        for key, (_, default) in self.table[name].items():
            if key not in values and default is not None:
                kind, value = default
                if kind == "section":
                    value = self._view(value, {})
                elif kind == "seconds":
                    value = timedelta(seconds=value)
                values[key] = dict(value) if isinstance(value, dict) else value
        return View(name, {key: values[key] for key in self.table[name]}, given)

    def _unknown_key(
        self, key: str, entry: Entry, name: str, path: Path, variant: tuple[str, Any] | None
    ) -> str | None:
        """Reports a key that the section does not have; returns the one that was probably meant."""
        place = dotted(path) or "a recipe"
        if variant is not None:
            place = f"{place} with `{variant[0]}: {variant[1]}`"
        near = close_matches(key, self.table[name], cutoff=0.85)
        elsewhere = None if near else self._elsewhere(key)
        if not elsewhere:
            near = close_matches(key, self.table[name])
        hint = f"did you mean `{near[0]}`?" if near else elsewhere
        expected = None if near else listed(self.table[name], 30)
        message = f"`{short(key)}` is not a setting of {place}"
        self._add("T201", entry.key_at, (*path, key), message, expected=expected, hint=hint)
        return near[0] if near else None

    def _elsewhere(self, key: str) -> str | None:
        """Where the key does belong, if anywhere."""
        places: dict[str, list[str]] = {}
        for section, (kind, _) in self.table["Recipe"].items():
            for name, tag in _classes(kind):
                if key in self.table[name]:
                    places.setdefault(f"{section}.{key}", []).append(tag or "")
                for inner, (field, _default) in self.table[name].items():
                    if field[0] == "section" and key in self.table[field[1]]:
                        places.setdefault(f"{section}.{inner}.{key}", []).append("")
        if not places:
            return None
        where = min(places, key=lambda place: place.count("."))
        tags = " or ".join(f"`{tag}`" for tag in dict.fromkeys(places[where]) if tag)
        return f"it belongs to `{where}`" + (f" with {tags}" if tags else "")

    def _missing(self, key: str, kind: Type, node: Node, path: Path) -> None:
        at = locate(self.root, path, key=True) if path else node.at
        self._add("T202", at, (*path, key), f"`{key}` is required", expected=self._describe(kind))

    def _add(self, code: str, at: Position, path: Path, message: str, **more: str | None) -> None:
        self.problems.append(Problem(code, at, dotted(path), message, **more))  # type: ignore[arg-type]

    # -- values -----------------------------------------------------------------------------------------------

    def value(self, node: Node, kind: Type, path: Path) -> Any:
        """The value of a field, or `BAD` after recording why."""
        if isinstance(node.value, Unknown):
            return BAD
        return getattr(self, f"_{kind[0]}")(node, kind, path)

    def _section(self, node: Node, kind: Type, path: Path) -> Any:
        return self._mapping(node, kind[1], path)

    def _optional(self, node: Node, kind: Type, path: Path) -> Any:
        if node.value is None:
            return None
        return self.value(node, kind[1], path)

    def _any(self, node: Node, kind: Type, path: Path) -> Any:
        if isinstance(node.value, Doubtful):
            return self._doubtful(node, path)
        if isinstance(node.value, dict):
            items = {key: self.value(entry.node, kind, (*path, key)) for key, entry in node.value.items()}
            return BAD if any(item is BAD for item in items.values()) else items
        if isinstance(node.value, list):
            found = [self.value(item, kind, (*path, index)) for index, item in enumerate(node.value)]
            return BAD if any(item is BAD for item in found) else found
        return node.value

    def _bool(self, node: Node, kind: Type, path: Path) -> Any:
        return node.value if isinstance(node.value, bool) else self._wrong(node, path, self._describe(kind))

    def _int(self, node: Node, kind: Type, path: Path) -> Any:
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            hint = number_hint(node.value)
            if isinstance(node.value, float) and node.value.is_integer() and abs(node.value) < 1e15:
                hint = f"write {int(node.value)}"
            return self._wrong(node, path, self._describe(kind), hint)
        return self._bounded(node, node.value, node.value, kind, path)

    def _float(self, node: Node, kind: Type, path: Path) -> Any:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            return self._wrong(node, path, self._describe(kind), number_hint(node.value))
        try:
            number = float(node.value)
        except OverflowError:
            return self._wrong(node, path, self._describe(kind))
        return self._bounded(node, number, number, kind, path)

    def _duration(self, node: Node, kind: Type, path: Path) -> Any:
        try:
            if isinstance(node.value, Doubtful):
                raise ValueError
            value = parse_duration(node.value)
        except TooLargeError as error:
            return self._wrong(node, path, str(error).removeprefix("expected "), code="T204")
        except ValueError:
            return self._wrong(node, path, self._describe(kind), unit_hint(node.value, "duration"))
        return self._bounded(node, value.total_seconds(), value, kind, path)

    def _size(self, node: Node, kind: Type, path: Path) -> Any:
        try:
            if isinstance(node.value, Doubtful):
                raise ValueError
            value = parse_size(node.value)
        except TooLargeError as error:
            return self._wrong(node, path, str(error).removeprefix("expected "), code="T204")
        except ValueError:
            return self._wrong(node, path, self._describe(kind), unit_hint(node.value, "size"))
        return self._bounded(node, value, value, kind, path)

    def _bounded(self, node: Node, number: float, value: Any, kind: Type, path: Path) -> Any:
        _, ge, gt, le, lt = kind
        low = (ge is not None and number < ge) or (gt is not None and number <= gt)
        high = (le is not None and number > le) or (lt is not None and number >= lt)
        if high and le == LARGEST_INT:
            return self._wrong(node, path, "an integer below 2^63", code="T204")
        return self._wrong(node, path, self._describe(kind), code="T204") if low or high else value

    def _str(self, node: Node, kind: Type, path: Path) -> Any:
        _, shortest, longest, _pattern = kind
        if not isinstance(node.value, str) or isinstance(node.value, Doubtful):
            hint = (
                "" if _word(node) and not _fits(node.raw, kind) else None
            )  # the text would be refused as well
            if hint is None and not isinstance(node.value, Doubtful) and isinstance(node.value, int | float):
                what = "boolean" if isinstance(node.value, bool) else "number"
                hint = f'write "{node.raw}" for the text'
                message = f"{shown(node)} is a {what} here, not text"
                return self._wrong(node, path, self._describe(kind), hint, message=message)
            return self._wrong(node, path, self._describe(kind), hint)
        length = len(node.value)
        if (shortest is not None and length < shortest) or (longest is not None and length > longest):
            return self._wrong(
                node, path, f"{self._describe(kind)}; this has {length} characters", code="T204"
            )
        if not _fits(node.value, kind):
            return self._wrong(node, path, self._describe(kind), code="T204")
        return str(node.value)

    def _literal(self, node: Node, kind: Type, path: Path) -> Any:
        for choice in kind[1]:
            if type(choice) is type(node.value) and choice == node.value:
                return choice
            if isinstance(node.value, Doubtful) and choice == node.value:
                return choice
        return self._wrong(node, path, self._describe(kind), choice_hint(node.value, kind[1]), code="T205")

    def _list(self, node: Node, kind: Type, path: Path) -> Any:
        _, inner, shortest, longest = kind
        if not isinstance(node.value, list):
            hint = f"write [{node.raw}]" if node.raw and not isinstance(node.value, dict) else None
            return self._wrong(node, path, self._describe(kind), hint or self._item_hint(node))
        length = len(node.value)
        if (shortest is not None and length < shortest) or (longest is not None and length > longest):
            return self._wrong(node, path, f"{self._describe(kind)}; this has {length}", code="T204")
        values = [self.value(item, inner, (*path, index)) for index, item in enumerate(node.value)]
        return BAD if any(value is BAD for value in values) else tuple(values)

    def _tuple(self, node: Node, kind: Type, path: Path) -> Any:
        if not isinstance(node.value, list) or len(node.value) != len(kind[1]):
            return self._wrong(node, path, self._describe(kind), self._item_hint(node))
        values = [self.value(item, kind[1][index], (*path, index)) for index, item in enumerate(node.value)]
        return BAD if any(value is BAD for value in values) else tuple(values)

    @staticmethod
    def _item_hint(node: Node) -> str | None:
        """For `--set list.0=...` where the recipe does not write the list."""
        numbered = isinstance(node.value, dict) and node.value and all(map(str.isdecimal, node.value))
        return (
            "set the whole list: the recipe does not write it, so it has no items to change"
            if numbered
            else None
        )

    def _dict(self, node: Node, kind: Type, path: Path) -> Any:
        _, key_type, inner, shortest, longest = kind
        if not isinstance(node.value, dict):
            return self._wrong(node, path, self._describe(kind))
        length = len(node.value)
        if (shortest is not None and length < shortest) or (longest is not None and length > longest):
            return self._wrong(node, path, f"{self._describe(kind)}; this has {length}", code="T204")
        values = {}
        for key, entry in node.value.items():
            name = self.value(Node(key, entry.key_at, key), key_type, (*path, key))
            item = self.value(entry.node, inner, (*path, key))
            values[key] = BAD if name is BAD else item
        return BAD if any(item is BAD for item in values.values()) else values

    def _tagged(self, node: Node, kind: Type, path: Path) -> Any:
        _, key, tags = kind
        if not isinstance(node.value, dict):
            hint = f"write {{{key}: {node.raw}}}" if node.value in list(tags) else None
            return self._wrong(node, path, self._describe(kind), hint)
        entry = node.value.get(key)
        if entry is None:
            self._no_variant(node, key, tags, path)
            return BAD
        tag = self.value(entry.node, ("literal", tuple(tags)), (*path, key))
        return BAD if tag is BAD else self._mapping(node, tags[tag], path, (key, tag))

    def _no_variant(self, node: Node, key: str, tags: dict[str, str], path: Path) -> None:
        """The key that names the variant is missing: perhaps it is one of those that no variant has."""
        known = dict.fromkeys(field for name in tags.values() for field in self.table[name])
        strange = {name: entry for name, entry in node.value.items() if name not in known}
        for name, entry in strange.items():
            near = close_matches(name, known)
            hint = f"did you mean `{near[0]}`?" if near else None
            message = f"`{short(name)}` is not a setting of {dotted(path)}"
            self._add("T201", entry.key_at, (*path, name), message, hint=hint)
        if not any(close_matches(name, [key]) for name in strange):
            at = locate(self.root, path, key=True)
            self._add("T202", at, (*path, key), f"`{key}` is required", expected=choices_text(tags))

    def _oneof(self, node: Node, kind: Type, path: Path) -> Any:
        """The alternative that fits; of several mappings the one that shares most keys is reported on."""
        for inner in kind[1]:
            attempt = TypeChecker(self.table)
            attempt.root = self.root
            value = attempt.value(node, inner, path)
            if not attempt.problems:
                return value
        sections = [inner for inner in kind[1] if inner[0] == "section"]
        if isinstance(node.value, dict) and node.value:
            shared = [(len(set(node.value) & set(self.table[inner[1]])), inner) for inner in sections]
            best = max(shared, key=lambda pair: pair[0], default=(0, None))
            if best[0]:
                return self.value(node, best[1] or kind, path)
        near = None
        for inner in kind[1]:
            if inner[0] == "literal":
                near = nearest_choice(node.value, inner[1])
        return self._wrong(node, path, self._describe(kind), f"did you mean `{near}`?" if near else None)

    # -- words ------------------------------------------------------------------------------------------------

    def _wrong(
        self,
        node: Node,
        path: Path,
        expected: str,
        hint: str | None = None,
        code: str = "T203",
        message: str | None = None,
    ) -> Any:
        """Records a value that does not fit; an empty `hint` keeps the one for doubtful scalars away."""
        if isinstance(node.value, Doubtful) and hint is None:
            hint = doubt_hint(node.value, expected)
        what = message or misfit(node)
        found = Problem(code, node.at, dotted(path), what, shown(node), expected, hint or None)
        self.problems.append(found)
        return BAD

    def _doubtful(self, node: Node, path: Path) -> Any:
        return self._wrong(
            node, path, "a value that all YAML readers read alike", f'write "{node.raw}" for the text'
        )

    def _describe(self, kind: Type) -> str:
        return describe(kind, self.table)


def _word(node: Node) -> bool:
    """Whether something is written that could be a text, and is not meant for nothing (`None`)."""
    return bool(node.raw) and node.raw.lower() not in ("none", "nil", "undefined")


def _fits(text: str, kind: Type) -> bool:
    """Whether a text has the form of a type `str`; its length aside."""
    pattern = kind[3]
    return pattern is None or bool(re.search(pattern.removesuffix("$") + r"\Z", text))  # as Rust's `$`


def _classes(kind: Type) -> list[tuple[str, str | None]]:
    if kind[0] == "section":
        return [(kind[1], None)]
    if kind[0] == "tagged":
        return [(name, f"{kind[1]}: {tag}") for tag, name in kind[2].items()]
    return []
