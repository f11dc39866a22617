"""Rules across sections, each with a number and a page in docs/rules.md; `check` runs them all."""

from __future__ import annotations

from runner.recipe.checks import (
    batch,
    faults,
    kubernetes,
    machine,
    memory,
    model,
    mounts,
    storage,
    timeouts,
    versions,
    waits,
)
from runner.recipe.checks.rule import RULES, run_rules
from runner.recipe.node import Node
from runner.recipe.problems import Problem
from runner.recipe.view import View

MODULES = (timeouts, waits, batch, model, memory, storage, faults, machine, kubernetes, mounts, versions)
"""Importing them registers their rules."""

__all__ = ["MODULES", "RULES", "check"]


def check(view: View, root: Node) -> list[Problem]:
    """What the rules find in a recipe; settings that are wrong by themselves keep their rules silent."""
    return run_rules(view, root)
