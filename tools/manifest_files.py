"""The manifests of the shipped recipes, as generated files of the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent


def _manifest(recipe: Path) -> str:
    from runner.emit.manifest import emit_manifest
    from runner.recipe.load import load_recipe

    loaded = load_recipe(recipe, environment={})
    made = (
        f"# nvrx-run --emit-manifest recipes/{recipe.name}, no environment variable set; `make generated`.\n"
    )
    return made + emit_manifest(cast("Recipe", loaded.view))


def manifest_files() -> dict[str, Callable[[], str]]:
    """Path below the root -> its text, for each shipped recipe that names a cluster."""
    from runner.recipe.load import load_recipe

    files: dict[str, Callable[[], str]] = {}
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        loaded = load_recipe(recipe, environment={})
        if getattr(loaded.view, "cluster").kubernetes is not None:  # noqa: B009 - the view's fields are dynamic
            files[f"manifests/{recipe.name}"] = lambda recipe=recipe: _manifest(recipe)  # type: ignore[misc]
    return files
