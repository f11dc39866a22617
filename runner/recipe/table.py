"""The sections as a table: what the quick check of a recipe needs to know of them, without importing pydantic.

`build_table` reads the pydantic classes; `table()` gives the copy stored in `_table.py` while that is current (it
holds a checksum of the section files), so that `nvrx-run --validate` starts in the time of a YAML import. After a
change of a section: `make generated`.

A type is a tuple whose first item names its kind:

    ("int", ge, gt, le, lt)  ("float", ge, gt, le, lt)  ("str", min, max, pattern)  ("bool",)  ("any",)
    ("literal", choices)  ("duration", ge, gt, le, lt)  ("size", ge, gt, le, lt)  ("optional", type)
    ("list", type, min, max)  ("tuple", types)  ("dict", key type, type, min, max)
    ("section", class)  ("tagged", key, {tag: class})  ("oneof", types)

A default is `("value", v)`, `("seconds", s)`, `("section", class)` or None where the field is required.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

Type = tuple[Any, ...]
Fields = dict[str, tuple[Type, tuple[str, Any] | None]]
Table = dict[str, Fields]

SECTION_FILES = (
    "checkpoint", "cluster", "dataset", "faults", "fields", "kubernetes", "model", "output", "recipe", "recovery",
    "sharding", "training",
)  # fmt: skip
_HERE = Path(__file__).parent


def checksum() -> int:
    """Of the files that declare sections, line ends normalised."""
    value = 0
    for name in SECTION_FILES:
        value = zlib.crc32((_HERE / f"{name}.py").read_bytes().replace(b"\r\n", b"\n"), value)
    return value


_memo: Table = {}


def table() -> Table:
    """The sections of `Recipe`, by class name."""
    if not _memo:
        from runner.recipe import _table

        if checksum() == _table.CHECKSUM:
            _memo.update(_table.TABLE)
        else:
            from runner.recipe.introspect import build_table

            _memo.update(build_table())
    return _memo
