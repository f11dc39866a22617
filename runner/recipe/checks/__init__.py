"""Rules across sections, each with a number and a page in docs/rules.md; `check` runs them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks import batch, kubernetes, machine, model, timeouts
from runner.recipe.checks.rule import RULES, run_rules
from runner.recipe.node import Node
from runner.recipe.problems import Problem

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

__all__ = ["RULES", "batch", "check", "kubernetes", "machine", "model", "timeouts"]


def check(recipe: Recipe, root: Node) -> list[Problem]:
    """What the rules find in a recipe whose settings are right one by one."""
    return run_rules(recipe, root)
