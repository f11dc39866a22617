"""The strings under the fields of the sections, read from the source: the documentation of every setting.

Read with `ast` when somebody asks for it, so that declaring a setting costs nothing at import.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import NamedTuple

from runner.recipe.table import SECTION_FILES


class SectionDoc(NamedTuple):
    """Text of one section class: its own, and of each field, inherited ones included."""

    text: str
    fields: dict[str, str]


def section_docs() -> dict[str, SectionDoc]:
    """Documentation by class name, of every class in the section files."""
    own: dict[str, tuple[str, dict[str, str], list[str]]] = {}
    for name in SECTION_FILES:
        source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        for item in ast.parse(source).body:
            if isinstance(item, ast.ClassDef):
                bases = [base.id for base in item.bases if isinstance(base, ast.Name)]
                own[item.name] = (_one_line(ast.get_docstring(item) or ""), _fields(item), bases)

    def inherited(name: str) -> dict[str, str]:
        _, fields, bases = own.get(name, ("", {}, []))
        merged: dict[str, str] = {}
        for base in bases:
            merged |= inherited(base)
        return merged | fields

    return {name: SectionDoc(own[name][0], inherited(name)) for name in own}


def _fields(cls: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for item, after in zip(cls.body, cls.body[1:], strict=False):
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and documented:
            found[item.target.id] = _one_line(str(after.value.value))  # type: ignore[attr-defined]
    return found


def _one_line(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())
