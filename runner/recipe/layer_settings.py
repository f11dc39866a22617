"""Settings of a recovery layer, where a recipe's layer has them; works on `Recipe` and on the quick check's view."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe
    from runner.recipe.recovery import FtLauncherSettings, InprocessSettings

INPROCESS = "recovery.inprocess."
FT_LAUNCHER = "recovery.ft_launcher."
"""What the paths of their settings begin with."""


def ft_launcher(recipe: Recipe) -> FtLauncherSettings | None:
    """ft_launcher's settings, alone or with in-process restart."""
    return getattr(recipe.recovery, "ft_launcher", None)


def inprocess(recipe: Recipe) -> InprocessSettings | None:
    """In-process restart's settings, alone or under ft_launcher."""
    return getattr(recipe.recovery, "inprocess", None)
