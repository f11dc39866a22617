"""The tiny recipe that several rooms train, as plain data: a Llama of two blocks, the embedded text, two CPU ranks."""

from __future__ import annotations

import copy
from typing import Any

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "architecture": {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "attention_dropout": 0.1,
        },
    },
    "dataset": {"source": "embedded", "sequence_length": 32, "max_documents": 40},
    "sharding": {"strategy": "fsdp", "wrap": "transformer_block"},
    "training": {"steps": 12, "global_batch_size": 8, "micro_batch_size": 2, "precision": "fp32"},
    "checkpoint": {"every": 4},
    "recovery": {"layer": "none"},
    "cluster": {"accelerator": "cpu", "processes_per_node": 2},
}


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with dotted keys replaced."""
    result = copy.deepcopy(base)
    for dotted, value in changes.items():
        *path, leaf = dotted.split(".")
        section = result
        for key in path:
            section = section.setdefault(key, {})
        section[leaf] = copy.deepcopy(value)
    return result
