"""All ranks of a run train by the same recipe: one that was edited, or another `--set`, on one of the nodes is refused.

Each node reads the recipe for itself, at its own start. Ranks that differ in a learning rate or a seed would train on
without a word, and those that differ in `steps` hang at the end of one of them.
"""

from __future__ import annotations

import os
from typing import Any

from runner.checkpoint.exchange import Exchange
from runner.errors import InputError
from runner.recipe.difference import by_dotted_name, differences
from runner.recipe.recipe import Recipe
from runner.train.ports import Life

_SECTIONS = {"model", "dataset", "sharding", "training", "checkpoint", "recovery", "faults"}
# Where something is may be called otherwise on another node.
_PLACES = frozenset({"checkpoint.folder", "dataset.path", "dataset.paths", "dataset.tokenizer", "model.name"})


def check_same_recipe(recipe: Recipe, life: Life) -> None:
    """Compare this rank's recipe with rank 0's. All ranks call it once they have met.

    Args:
        recipe: resolved.

    Raises:
        InputError: they differ; every setting that does is named.
        PeerMissingError: rank 0 does not say what it has within `recovery.rendezvous_timeout`.
    """
    mine = _settings(recipe)
    exchange = Exchange(life, beat=lambda: None)
    rank_0 = exchange.decide(
        "recipe", lambda: mine, recipe.recovery.rendezvous_timeout, "the recipe of rank 0"
    )
    changed = differences(rank_0, mine)
    if changed:
        raise InputError(
            f"rank {life.rank} ({os.uname().nodename}) has another recipe than rank 0: {changed}; start all nodes with "
            "the same file and the same --set"
        )


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = by_dotted_name(recipe.model_dump(mode="json", include=_SECTIONS))
    return {name: value for name, value in settings if name not in _PLACES}
