"""Suites for the tests."""

from __future__ import annotations

from pathlib import Path

SUITES = Path(__file__).parents[2] / "recipes" / "suites"
QUICKSTART = SUITES.parent / "quickstart.yaml"


def written(folder: Path, text: str) -> Path:
    """A suite over the quickstart recipe, with `text` after its head."""
    path = folder / "s.yaml"
    path.write_text(f"name: s\nrecipe: {QUICKSTART}\n{text}")
    return path
