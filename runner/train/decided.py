"""What decides how a run goes on and does not show in the names, shapes and formats of its tensors."""

from __future__ import annotations

import json
from typing import Any

from runner.recipe.difference import by_dotted_name
from runner.recipe.recipe import Recipe
from runner.train.data.tokenizer import tokenizer_name

_NO_PART = frozenset(  # of a configuration: what training does not compute with
    {
        "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "id2label", "initializer_range",
        "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict",
        "transformers_version", "use_cache",
    }
)  # fmt: skip


def decided(recipe: Recipe, config: Any) -> dict[str, Any]:
    """Settings by their dotted names in a recipe, defaults included; JSON values.

    The architecture (heads, rotary base and scaling, epsilons, windows, dropout), and what says which sequence comes
    when: seed, global batch size, dataset. Not the optimiser and its schedule: what they are now is what a user wants.

    Args:
        recipe: resolved.
        config: of transformers, for the recipe's model.
    """
    dataset = recipe.dataset.model_dump(mode="json", exclude={"workers", "worker_timeout"})
    dataset["tokenizer"] = tokenizer_name(recipe)
    architecture = by_dotted_name(json.loads(config.to_json_string(use_diff=False)), "model.architecture")
    return {
        **{
            name: value
            for name, value in architecture
            if value != {} and _NO_PART.isdisjoint(name.split("."))
        },
        "training.seed": recipe.training.seed,
        "training.global_batch_size": recipe.training.global_batch_size,
        **{f"dataset.{key}": value for key, value in dataset.items()},
    }
