"""Small recipes, as plain data, that the emission tests vary."""

from __future__ import annotations

import copy
from typing import Any

from runner.recipe.recipe import Recipe

LAYERS = ("none", "inprocess", "ft_launcher", "ft_launcher+inprocess")

_TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "architecture": {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        }
    },
    "dataset": {"source": "embedded", "sequence_length": 64},
    "sharding": {"strategy": "fsdp"},
    "training": {"steps": 20, "global_batch_size": 16, "micro_batch_size": 2, "precision": "fp32"},
    "checkpoint": {"every": 5},
    "recovery": {"layer": "none"},
    "cluster": {"accelerator": "cpu", "processes_per_node": 2},
}  # fmt: skip


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it, mappings merged key by key (a new `source` is a new mapping)."""
    result = copy.deepcopy(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict) and "source" not in value
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def tiny(**change: Any) -> Recipe:
    """The tiny recipe with sections laid over it."""
    return Recipe.model_validate(merged(_TINY, change))


def tiny_data(**change: Any) -> dict[str, Any]:
    """The same as plain data."""
    return merged(_TINY, change)


KUBERNETES: dict[str, Any] = {
    "image": "registry.example/nvrx-run:0.1",
    "storage": {"source": "claim", "claim_name": "shared"},
}


def on_cluster(instance: str = "p5.48xlarge", nodes: int = 2, layer: str = "none", **change: Any) -> Recipe:
    """The tiny recipe for a Kubernetes cluster."""
    base: dict[str, Any] = {
        "training": {"precision": "bf16", "global_batch_size": 256},
        "recovery": {"layer": layer},
        "cluster": {
            "accelerator": "auto", "processes_per_node": None, "nodes": nodes, "instance_type": instance,
            "kubernetes": KUBERNETES,
        },
    }  # fmt: skip
    return tiny(**merged(base, change))
