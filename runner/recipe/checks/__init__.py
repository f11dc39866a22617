"""Rules across sections, each with a number and a page in docs/rules.md; `check` runs them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks import (
    batch,
    faults,
    kubernetes,
    machine,
    memory,
    model,
    storage,
    timeouts,
    versions,
)
from runner.recipe.checks.rule import RULES, run_rules
from runner.recipe.node import Node
from runner.recipe.problems import Problem

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

MODULES = (timeouts, batch, model, memory, storage, faults, machine, kubernetes, versions)
"""Importing them registers their rules."""

__all__ = ["MODULES", "RULES", "check"]


def check(recipe: Recipe, root: Node) -> list[Problem]:
    """What the rules find in a recipe whose settings are right one by one."""
    return run_rules(recipe, root)
