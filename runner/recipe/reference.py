"""docs/recipe.md: every setting of every section, from the sections themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from runner.recipe.docstrings import section_docs
from runner.recipe.table import Table, Type, table
from runner.recipe.units import format_duration
from runner.recipe.words import choices_text, describe

_INTRODUCTION = """# Recipe reference

Every section and setting. Generated from `runner/recipe/`: `make generated`.

Durations are seconds or text such as `90s`, `20m`, `1h30m`; sizes are bytes or text such as `64GiB`, `500MB`. A setting
without a default is required. `nvrx-run --explain RECIPE` shows the values that a recipe ends up with and where each
comes from. How settings must fit together is in [rules.md](rules.md).

Beside the sections, `extends: other.yaml` (a path relative to the file) merges this recipe over another one, mapping by
mapping; `!replace` before a mapping puts it in the place of the other's. `${NAME}` and `${NAME:-default}` are filled in
from the environment, `$${` stands for a literal `${`. `--set section.key=value` overrides from the command line.

Other relative paths (`output.folder`, `dataset.paths`, a `model.name` that is a folder, ...) start where the command is
given, not at the recipe's file; in a pod that is the storage's `mount_path`.
"""


def reference_text() -> str:
    """The page as Markdown."""
    sections, docs = table(), section_docs()
    lines = [_INTRODUCTION]
    for section, (kind, default) in sections["Recipe"].items():
        lines.append(f"## {section}\n")
        lines.append(docs["Recipe"].fields[section] + ("" if default is None else " May be left out.") + "\n")
        if kind[0] not in ("section", "tagged"):
            lines.append(f"{_cell(describe(kind, sections))}.\n")
        for name, title in _variants(kind):
            if title:
                lines.append(f"### {section}, `{title}`\n")
            lines += _table(name, section, sections)
    return "\n".join(lines)


def _variants(kind: Type) -> list[tuple[str, str]]:
    if kind[0] == "section":
        return [(kind[1], "")]
    if kind[0] == "tagged":
        return [(name, f"{kind[1]}: {tag}") for tag, name in kind[2].items()]
    if kind[0] in ("optional", "list"):
        return _variants(kind[1])
    if kind[0] == "dict":
        return _variants(kind[2])
    if kind[0] == "oneof":
        return [(inner[1], "") for inner in kind[1] if inner[0] == "section"]
    return []


def _table(name: str, path: str, sections: Table) -> list[str]:
    doc = section_docs()[name]
    lines = [doc.text + "\n", "| setting | type | default | |", "|---|---|---|---|"]
    below: list[str] = []
    for field, (kind, default) in sections[name].items():
        text = _cell(doc.fields.get(field, ""))
        lines.append(f"| `{field}` | {_cell(_type(kind, sections))} | {_default(default)} | {text} |")
        for inner, title in _variants(kind):
            below.append(f"#### {path}.{field}{f', `{title}`' if title else ''}\n")
            below += _table(inner, f"{path}.{field}", sections)
    return [*lines, "", *below]


def _type(kind: Type, sections: Table) -> str:
    if kind[0] == "literal":
        return choices_text(kind[1])
    if kind[0] == "section":
        return "section"
    if kind[0] == "tagged":
        return f"section by `{kind[1]}`"
    if kind[0] == "optional":
        return _type(kind[1], sections)
    if kind[0] == "dict":
        return f"mapping to {_type(kind[2], sections)}"
    if kind[0] == "list":
        return f"list of {_type(kind[1], sections)}"
    if kind[0] == "oneof":
        return " or ".join("{" + ", ".join(sections[k[1]]) + "}" if k[0] == "section" else _type(k, sections)
                           for k in kind[1])  # fmt: skip
    text = describe(kind, sections).replace(" such as 90s, 20m or a number of seconds", "")
    return (
        text.replace(" such as 64GiB, 500MB or a number of bytes", "").removeprefix("a ").removeprefix("an ")
    )


def _default(default: tuple[str, Any] | None) -> str:
    if default is None:
        return ""
    kind, value = default
    if kind == "section":
        return "its defaults"
    if kind == "seconds":
        return f"`{format_duration(timedelta(seconds=value))}`"
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`".replace("'", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
