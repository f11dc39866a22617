"""A recipe as the text that a pod mounts: every default spelled out, paths of the run absolute.

Relative paths of data and models stay: in a pod they start at the storage, which is the container's working folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runner.emit.yaml_text import documents
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


def recipe_text(recipe: Recipe, *, folder: str) -> str:
    """YAML that loads to the same recipe where `folder` is the working folder.

    Args:
        recipe: `Recipe`, or the quick check's view of it.
        folder: where the storage is mounted.
    """
    values = _plain(recipe)
    run = posixpath.join(folder, values["output"]["folder"] or f"runs/{values['name']}")
    checkpoints = values["checkpoint"]["folder"]
    values["output"]["folder"] = posixpath.normpath(run)
    values["checkpoint"]["folder"] = posixpath.normpath(
        posixpath.join(folder, checkpoints or f"{run}/checkpoints")
    )
    if not values["faults"]["count"] and not values["faults"]["at"]:
        del values["faults"]  # settings of faults that are never drawn would be warned about
    return documents([_escaped(values)]).removeprefix("---\n")


def _plain(value: Any) -> Any:
    """Sections as mappings, tuples as lists, durations as texts."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    fields = getattr(type(value), "model_fields", None)
    if fields is not None:
        return {key: _plain(getattr(value, key)) for key in fields}
    if hasattr(value, "section_name"):
        own = ("section_name", "given")
        return {key: _plain(item) for key, item in vars(value).items() if key not in own}
    return value


def _escaped(value: Any) -> Any:
    """Texts in which `${` stands for itself: a recipe's `${NAME}` is filled in once, when it is emitted."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
