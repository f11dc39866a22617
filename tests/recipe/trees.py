"""Valid recipes as trees, and their text with the line of every key: what the mutation test starts from."""

from __future__ import annotations

import copy
import json
from typing import Any

Path = tuple[str | int, ...]


class Raw(str):
    """YAML text that goes into the file as it is."""

    __slots__ = ()


LAPTOP: dict[str, Any] = {
    "name": "laptop",
    "model": {
        "architecture": {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2,
        },
        "weights": "random", "param_dtype": "float32", "activation_checkpointing": False,
    },
    "dataset": {"source": "embedded", "sequence_length": 64, "tokenizer": "bytes", "shuffle": True, "workers": 0},
    "sharding": {"strategy": "fsdp", "wrap": {"min_params": 1000}, "reduce_dtype": "float32"},
    "training": {
        "steps": 40, "global_batch_size": 8, "micro_batch_size": 2, "seed": 1,
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": 5}, "clip_norm": 1.0, "precision": "fp32",
    },
    "checkpoint": {"mode": "async", "every": 10, "snapshot_every": 5, "keep_last": 2, "write_timeout": "5m"},
    "recovery": {
        "layer": "inprocess", "process_group_timeout": "10m",
        "inprocess": {"max_restarts": 5, "soft_timeout": "30s", "hard_timeout": "60s", "barrier_timeout": "90s"},
    },
    "faults": {
        "count": 2, "seed": 3, "types": ["exception", "hang"], "weights": [0.5, 0.5], "after_step": 10,
        "at": [{"step": 7, "rank": 1, "type": "exception"}],
    },
    "cluster": {"nodes": 1, "processes_per_node": 2, "accelerator": "cpu", "rendezvous_port": 29500},
    "output": {"folder": "runs/laptop", "log_format": "console", "progress": "off"},
}  # fmt: skip

CLUSTER: dict[str, Any] = {
    "name": "on-a-cluster",
    "model": {"name": "meta-llama/Llama-3.1-8B", "weights": "random",
    "activation_checkpointing": True, "compile": False},
    "dataset": {
        "source": "hub", "name": "allenai/c4", "config": "en", "split": "train", "streaming": False,
        "text_column": "text", "sequence_length": 4096, "max_documents": 100000,
    },
    "sharding": {"strategy": "hsdp", "replicas": 2, "wrap": {"modules": ["LlamaDecoderLayer"]}},
    "training": {"steps": 2000, "global_batch_size": 32, "micro_batch_size": 1, "precision": "bf16"},
    "checkpoint": {
        "mode": "async", "every": 500, "keep_last": 2, "keep_every": 1000, "storage_bandwidth": "500MB",
        "write_timeout": "20m", "load_timeout": 1200, "on_busy": "wait", "on_error": "stop",
    },
    "recovery": {
        "layer": "ft_launcher+inprocess", "process_group_timeout": "10m",
        "inprocess": {"soft_timeout": "60s", "hard_timeout": "90s", "barrier_timeout": "2m"},
        "ft_launcher": {"max_restarts": 10, "rank_heartbeat_timeout": "15m", "term_timeout": "5m"},
    },
    "cluster": {
        "nodes": 2, "instance_type": "p5.48xlarge", "nvrx_version": "0.4.1", "nccl_version": "2.28.9",
        "kubernetes": {
            "image": "registry.example/nvrx-run:0.1.0", "namespace": "training", "efa": 32,
            "storage": {
                "source": "fsx", "file_system_id": "fs-0123456789abcdef0",
                "dns_name": "fs.fsx.us-west-2.amazonaws.com",
                "mount_name": "fsx", "capacity": "4800Gi", "mount_path": "/shared",
            },
            "resources": {"memory": "1500Gi"},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}],
            "env": {"N": 1, "F": True}, "secret_env": {"HF_TOKEN": {"secret": "hf-token", "key": "token"}},
            "labels": {"team": "research"}, "pod_restarts": 6, "grace_period": "30m", "hyperpod": False,
        },
    },
}  # fmt: skip


def paths(tree: Any, path: Path = ()) -> list[Path]:
    """Every path below the top, sections before what is in them."""
    found: list[Path] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += [(*path, key), *paths(value, (*path, key))]
    return found


def get(tree: Any, path: Path) -> Any:
    """The value at a path."""
    for part in path:
        tree = tree[part]
    return tree


def replaced(tree: Any, path: Path, value: Any) -> Any:
    """A copy with another value at a path."""
    copied = copy.deepcopy(tree)
    get(copied, path[:-1])[path[-1]] = value
    return copied


def removed(tree: Any, path: Path) -> Any:
    """A copy without the value at a path."""
    copied = copy.deepcopy(tree)
    del get(copied, path[:-1])[path[-1]]
    return copied


def renamed(tree: Any, path: Path, key: str) -> Any:
    """A copy in which a key of a mapping has another name, at the same place."""
    copied = copy.deepcopy(tree)
    holder = get(copied, path[:-1])
    items = [(key if name == path[-1] else name, value) for name, value in holder.items()]
    holder.clear()
    holder.update(items)
    return copied


def render(tree: dict[str, Any]) -> tuple[str, dict[Path, int]]:
    """YAML text, one key a line, and the line of each path (of its key; of the item in a list)."""
    lines: list[str] = []
    places: dict[Path, int] = {}

    def value_text(value: Any) -> str:
        return str(value) if isinstance(value, Raw) else json.dumps(value)

    def put(value: Any, path: Path, head: str, indent: int) -> None:
        places[path] = len(lines) + 1
        nested = isinstance(value, dict) and value
        if nested:
            lines.append(head)
            for key, item in value.items():
                put(item, (*path, key), f"{'  ' * indent}{key}:", indent + 1)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            lines.append(head)
            for index, item in enumerate(value):
                places[(*path, index)] = len(lines) + 1
                lines.append(f"{'  ' * indent}-")
                for key, inner in item.items() if isinstance(item, dict) else ():
                    put(inner, (*path, index, key), f"{'  ' * (indent + 1)}{key}:", indent + 2)
                if not isinstance(item, dict):
                    lines[-1] += f" {value_text(item)}"
        elif isinstance(value, list):
            for index in range(len(value)):
                places[(*path, index)] = places[path]
            lines.append(f"{head} [{', '.join(value_text(item) for item in value)}]")
        else:
            lines.append(f"{head} {value_text(value)}")

    for key, value in tree.items():
        put(value, (key,), f"{key}:", 1)
    return "\n".join(lines) + "\n", places
