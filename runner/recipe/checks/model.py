"""R3xx: model, data and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


@rule("R301")
def model_has_a_source(recipe: Recipe, report: Report) -> None:
    """`model` names something to build: `name`, or `architecture` with its `model_type`."""
    model = recipe.model
    if model.name is None and model.architecture is None:
        report.add("model", "neither `name` nor `architecture` is given",
                   "give `name` (hub id or folder) or `architecture` (the shape itself)")  # fmt: skip
    elif model.name is None and not isinstance((model.architecture or {}).get("model_type"), str):
        hint = "add the transformers type, e.g. `model_type: llama`"
        report.add("model.architecture", "`model_type` is missing", hint)


@rule("R302")
def pretrained_weights_have_a_name(recipe: Recipe, report: Report) -> None:
    """`weights: pretrained` needs `name`: an architecture alone has no weights."""
    if recipe.model.weights == "pretrained" and recipe.model.name is None:
        report.add(
            "model.weights", "an architecture alone has no weights", "give `model.name`, or `weights: random`"
        )
