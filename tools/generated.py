"""Writes every generated file of the repository; with `--check`, says which are not current and exits 1.

    python tools/generated.py [--check]

The files follow from the sections and the rules in runner/recipe/: the quick check's table, the JSON Schema, and the
pages of docs/ that show settings, rules and errors, and the manifests of the shipped recipes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from manifest_files import manifest_files  # noqa: E402 - found through the line above


def _table() -> str:
    from runner.recipe.introspect import table_source

    return table_source()


def _schema() -> str:
    from runner.recipe.schema import schema_text

    return schema_text()


def _reference() -> str:
    from runner.recipe.reference import reference_text

    return reference_text()


def _found(path: str, overrides: tuple[str, ...] = ()) -> str:
    from runner.recipe.load import check_file
    from runner.recipe.render import text

    _, problems = check_file(path, overrides, environment={})
    return text(problems).rstrip()


_RULES = """# Rules

What `nvrx-run --validate` finds, by number. An **error** keeps a recipe from running; a **warning** does not, save with
`--strict`. Generated from `runner/recipe/checks/`: `make generated`. Each rule is shown on a shipped recipe that an
override breaks; the tests run the same.

## The file

| number | what it says |
|---|---|
"""


def _rules() -> str:
    from rule_cases import CASES, FILE_CODES

    from runner.recipe.checks import MODULES, RULES

    parts = [
        _RULES
        + "\n".join(f"| <a id='{code.lower()}'></a>{code} | {text} |" for code, text in FILE_CODES.items())
    ]
    for module in MODULES:
        parts.append(f"\n## {inspect.getdoc(module)}\n")
        for code, rule in sorted(RULES.items()):
            if rule.check.__module__ != module.__name__:
                continue
            path, overrides = CASES[code]
            sets = " ".join(f"--set '{item}'" for item in overrides)
            command = f"$ nvrx-run --validate {path} {sets}"
            title = rule.check.__name__.replace("_", " ")
            parts.append(
                f"### {code}\n\n*{title}* ({rule.severity})\n\n{inspect.getdoc(rule.check)}\n\n"
                f"```text\n{command}\n{_found(path, overrides)}\n```\n"
            )
    return "\n".join(parts)


_ERRORS = """# Ten recipes that are wrong, and what is said about them

Generated from the recipes in [errors/](errors/): `make generated`. The same findings come as JSON, GitHub annotations
or SARIF with `--format`; numbers such as T201 are explained in [rules.md](rules.md).
"""


def _errors() -> str:
    parts = [_ERRORS]
    for file in sorted((ROOT / "docs" / "errors").glob("*.yaml")):
        name = file.relative_to(ROOT).as_posix()
        number, _, words = file.stem.partition("-")
        title = words.replace("-", " ").replace("yaml", "YAML")
        recipe = file.read_text(encoding="utf-8").rstrip()
        parts.append(
            f"## {int(number)}. {title[0].upper()}{title[1:]}\n\n```yaml\n{recipe}\n```\n\n"
            f"```text\n$ nvrx-run --validate {name}\n{_found(name)}\n```\n"
        )
    return "\n".join(parts)


FILES: dict[str, Callable[[], str]] = {
    "runner/recipe/_table.py": _table,
    "docs/recipe.schema.json": _schema,
    "docs/recipe.md": _reference,
    "docs/rules.md": _rules,
    "docs/errors.md": _errors,
}


def stale() -> dict[str, str]:
    """Path below the root -> what should be there, for each file that is not current."""
    with _working_in(ROOT):
        wanted = {name: make() for name, make in (FILES | manifest_files()).items()}
    return {
        name: text
        for name, text in wanted.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    }


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """contextlib.chdir, which Python 3.10 lacks."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(argv: list[str]) -> int:
    """Write or check."""
    found = stale()
    for name, text in found.items():
        print(f"{name}: {'not current: run `make generated`' if '--check' in argv else 'written'}")
        if "--check" not in argv:
            (ROOT / name).write_text(text, encoding="utf-8")
    return int(bool(found) and "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
