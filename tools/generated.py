"""Writes every generated file of the repository; with `--check`, says which are not current and exits 1.

    python tools/generated.py [--check]

The files follow from the sections in runner/recipe/: the quick check's table, and what docs/ shows of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _table() -> str:
    from runner.recipe.introspect import table_source

    return table_source()


FILES: dict[str, Callable[[], str]] = {"runner/recipe/_table.py": _table}


def stale() -> dict[str, str]:
    """Path below the root -> what should be there, for each file that is not current."""
    wanted = {name: make() for name, make in FILES.items()}
    return {
        name: text
        for name, text in wanted.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    }


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
