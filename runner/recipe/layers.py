"""From files to one tree: `extends:` merged, `--set` applied. Every value keeps the position it was written at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.recipe.node import Entry, Node, Position
from runner.recipe.problems import Problem, RecipeErrors
from runner.recipe.yaml import read_bytes, read_file

_MOST_LAYERS = 10


def read_layers(
    path: Path, overrides: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[Node, list[Problem]]:
    """A recipe with what it extends and the overrides of the command line.

    Raises:
        RecipeErrors: a file of which nothing can be made, or a cycle.
    """
    root, problems = _extended(path, str(path), (), environment)
    for text in overrides:
        root = override(root, text, problems, environment)
    return root, problems


def _extended(
    path: Path, name: str, above: tuple[Path, ...], environment: Mapping[str, str] | None
) -> tuple[Node, list[Problem]]:
    root, problems = read_file(path, name, environment)
    entry = root.value.get("extends")
    if entry is None:
        return root, problems
    own = Node({key: item for key, item in root.value.items() if key != "extends"}, root.at, size=root.size)
    base = entry.node.value
    if not isinstance(base, str) or not base:
        problem = Problem("Y121", entry.node.at, "extends", "names no recipe", value=entry.node.raw or None,
                          expected="the path of one recipe, relative to this file")  # fmt: skip
        return own, [*problems, problem]
    base_path = path.parent / base
    chain = (*above, path.resolve())
    if base_path.resolve() in chain:
        raise RecipeErrors(
            [Problem("Y122", entry.node.at, "extends", f"{base} extends this file in turn: a cycle")]
        )
    if len(chain) > _MOST_LAYERS:
        raise RecipeErrors(
            [Problem("Y122", entry.node.at, "extends", f"more than {_MOST_LAYERS} layers of recipes")]
        )
    if not base_path.is_file():
        raise RecipeErrors([Problem("Y123", entry.node.at, "extends", f"{base_path} is not there", value=entry.node.raw,
                                    expected="the path of a recipe, relative to this file")])  # fmt: skip
    below, below_problems = _extended(base_path, os.path.normpath(base_path), chain, environment)
    return merge(below, own), [*below_problems, *problems]


def merge(base: Node, own: Node) -> Node:
    """`own` over `base`: mappings merge key by key, everything else replaces."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict) or own.replaces:
        return own
    entries = dict(base.value)
    for key, entry in own.value.items():
        below = entries.get(key)
        entries[key] = Entry(entry.key_at, merge(below.node, entry.node)) if below else entry
    return Node(entries, own.at, size=1 + sum(entry.node.size for entry in entries.values()))


def override(
    root: Node, text: str, problems: list[Problem], environment: Mapping[str, str] | None = None
) -> Node:
    """The tree with one `section.key=value` applied; the value is YAML."""
    name = f"--set {text}"
    at = Position(name, 0, 0, 0, 0)
    target, equals, written = text.partition("=")
    keys = target.strip().split(".")
    if not equals or not all(keys):
        problems.append(
            Problem("Y120", at, "", "is no override", expected="section.key=value, e.g. training.steps=100")
        )
        return root
    try:
        holder, found = read_bytes(f"value: {written}".encode("utf-8", "surrogateescape"), name, environment)
    except RecipeErrors as error:
        problems += [Problem(p.code, at, target, p.message, hint=p.hint) for p in error.problems]
        return root
    problems += [Problem(p.code, at, target, p.message, p.value, p.expected, p.hint) for p in found]
    if list(holder.value) != ["value"]:
        problems.append(Problem("Y120", at, target, "the value must be one YAML value on one line"))
        return root
    try:
        return assign(root, keys, _moved(holder.value["value"].node, at), at)
    except _NoItem as error:
        problems.append(Problem("Y120", at, target, str(error)))
        return root


class _NoItem(Exception):
    """An override names an item that a list does not have."""


def _moved(node: Node, at: Position) -> Node:
    value = node.value
    if isinstance(value, dict):
        value = {key: Entry(at, _moved(entry.node, at)) for key, entry in value.items()}
    elif isinstance(value, list):
        value = [_moved(item, at) for item in value]
    return Node(value, at, node.raw, node.size)


def assign(node: Node, keys: Sequence[str], value: Node, at: Position) -> Node:
    """The tree with `value` at `keys`; a number indexes a list. Sections on the way are made where missing."""
    head, rest = keys[0], keys[1:]
    if isinstance(node.value, list):
        if not head.isdecimal() or int(head) >= len(node.value):
            has = f"items 0 to {len(node.value) - 1}" if node.value else "no items"
            raise _NoItem(f"`{head}` is no item of this list, which has {has}")
        items = list(node.value)
        items[int(head)] = assign(items[int(head)], rest, value, at) if rest else value
        return Node(items, node.at, size=node.size)
    entries = dict(node.value) if isinstance(node.value, dict) else {}
    below = entries.get(head)
    if rest:
        start = below.node if below and isinstance(below.node.value, dict | list) else Node({}, at)
        entries[head] = Entry(below.key_at if below else at, assign(start, rest, value, at))
    else:
        entries[head] = Entry(at, value)
    return Node(entries, node.at if isinstance(node.value, dict) else at, size=node.size + value.size)
