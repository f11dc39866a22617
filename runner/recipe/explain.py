"""`--explain`: every setting with where it comes from, and what follows from the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

from runner.recipe import estimate, layer_settings
from runner.recipe.derived import pod_restarts
from runner.recipe.facts import MFU, Facts
from runner.recipe.ladder import ladder
from runner.recipe.load import LoadedRecipe
from runner.recipe.node import Path, find
from runner.recipe.table import table
from runner.recipe.units import format_duration, format_size, rough_duration
from runner.recipe.view import View

_VALUE_COLUMN = 58


def explain(loaded: LoadedRecipe) -> str:
    """The whole explanation as text."""
    facts = Facts(cast(Any, loaded.view))
    parts = [
        f"{loaded.path}: {facts.recipe.name}",
        "",
        "SETTINGS, and where each comes from",
        *_settings(loaded, loaded.view, (), 0),
        "",
        "WHAT FOLLOWS",
        *(f"  {name:<16} {text}" for name, text in _consequences(facts)),
        "",
        "TIMEOUTS, in the order in which they would fire",
        *ladder(facts),
    ]
    return "\n".join(line.rstrip() for line in parts) + "\n"


def _settings(loaded: LoadedRecipe, view: View, path: Path, depth: int) -> Iterator[str]:
    for key in table()[view.section_name]:
        yield from _setting(loaded, key, getattr(view, key), (*path, key), depth)


def _setting(loaded: LoadedRecipe, key: str, value: Any, path: Path, depth: int) -> Iterator[str]:
    node = find(loaded.root, path)
    source = str(node.at).rpartition(":")[0] if node and node.at.line else node.at.file if node else "default"
    head = f"{'  ' * (depth + 1)}{key}:"
    if isinstance(value, View):
        yield f"{head:<{_VALUE_COLUMN}} {source if source == 'default' else ''}"
        yield from _settings(loaded, value, path, depth + 1)
    elif isinstance(value, tuple) and value and isinstance(value[0], View):
        yield head
        for index, item in enumerate(value):
            yield f"{'  ' * (depth + 2)}- item {index + 1}"
            yield from _settings(loaded, item, (*path, index), depth + 2)
    elif isinstance(value, dict) and value:
        yield head
        for name, item in value.items():
            yield from _setting(loaded, str(name), item, (*path, name), depth + 1)
    else:
        yield f"{f'{head} {_value(value)}':<{_VALUE_COLUMN}} {source}"


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return str(format_duration(value))
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return str(value)


def _consequences(facts: Facts) -> Iterator[tuple[str, str]]:
    yield from _machines(facts)
    yield from _batch(facts)
    yield from _model(facts)
    yield from _checkpoints(facts)
    yield from _budget(facts)


def _machines(facts: Facts) -> Iterator[tuple[str, str]]:
    cluster = facts.recipe.cluster
    if facts.ranks is None:
        yield "ranks", "those of the machine that runs it: nothing below that depends on them is known"
        return
    kind = f" of {facts.node.name}" if facts.node else ""
    yield (
        "ranks",
        f"{cluster.nodes} node{'s' * (cluster.nodes > 1)}{kind} x {facts.local_ranks} = {facts.ranks}",
    )
    own = cluster.kubernetes.efa if cluster.kubernetes else None
    if facts.node is not None and (facts.node.efa or own):
        efa = own if own is not None else facts.node.efa if cluster.nodes > 1 and facts.on_gpus else 0
        yield (
            "EFA",
            f"{efa} of {facts.node.efa} interfaces a node" + ("" if cluster.nodes > 1 else " (one node)"),
        )


def _batch(facts: Facts) -> Iterator[tuple[str, str]]:
    training, length = facts.recipe.training, facts.recipe.dataset.sequence_length
    tokens = training.global_batch_size * length
    text = f"{training.global_batch_size} sequences x {length} = {tokens:,} tokens a step"
    if facts.ranks is not None:
        rounds = training.global_batch_size // (training.micro_batch_size * facts.ranks)
        text += f"; each rank {rounds} x {training.micro_batch_size} sequences"
    yield "batch", text
    yield "run", f"{training.steps:,} steps = {training.steps * tokens:,} tokens"
    if facts.step_seconds is not None:
        step, whole = (rough_duration(facts.step_seconds * steps) for steps in (1, training.steps))
        yield "time", f"about {step} a step, {whole} in all, at {MFU:.0%} of the GPUs' peak (a guess)"


def _model(facts: Facts) -> Iterator[tuple[str, str]]:
    shape, memory = facts.shape, facts.device_memory
    if shape is None:
        yield "parameters", "not known without a download: memory and checkpoints are not checked"
        return
    yield "parameters", f"{shape.parameters:,} ({shape.model_type}, {shape.layers} blocks of {shape.block:,})"
    if memory is not None and facts.on_gpus is not False:
        offered = f" of {format_size(facts.gpu_bytes)}" if facts.gpu_bytes else ""
        yield "GPU memory", f"about {format_size(memory.total)}{offered} on each:"
        for name, size in (
            ("parameters", memory.parameters), ("gradients", memory.gradients), ("optimiser", memory.optimizer),
            ("gathered", memory.gathered), ("activations", memory.activations), ("logits", memory.logits),
            ("runtime", estimate.RUNTIME_BYTES),
        ):  # fmt: skip
            yield "", f"{name:<12}{format_size(size):>10}"
    if facts.host_bytes is not None and facts.staging_bytes is not None:
        offered = f" of {format_size(facts.pod_bytes)}" if facts.pod_bytes else ""
        buffers = estimate.staging_buffers(facts.recipe)
        yield (
            "host memory",
            (
                f"about {format_size(facts.host_bytes)}{offered} a node, {format_size(facts.staging_bytes)} of it "
                f"{buffers} staging buffers a rank in /dev/shm"
            ),
        )


def _checkpoints(facts: Facts) -> Iterator[tuple[str, str]]:
    checkpoint = facts.recipe.checkpoint
    if facts.checkpoint_bytes is None:
        return
    kept = estimate.kept_checkpoints(facts.recipe)
    total = format_size(kept * facts.checkpoint_bytes)
    yield "checkpoint", f"{format_size(facts.checkpoint_bytes)}; at most {kept} on disk, {total}"
    if facts.write_seconds is not None:
        text = f"{rough_duration(facts.write_seconds, 3)} to write"
        if facts.step_seconds is not None:
            text += f", every {rough_duration(checkpoint.every * facts.step_seconds, 3)}"
        yield "", text + (", while training waits" if checkpoint.mode == "sync" else ", beside training")
    else:
        yield "", "time to write not known: state checkpoint.storage_bandwidth"


def _budget(facts: Facts) -> Iterator[tuple[str, str]]:
    kubernetes = facts.recipe.cluster.kubernetes
    inprocess, launcher = layer_settings.inprocess(facts.recipe), layer_settings.ft_launcher(facts.recipe)
    workers = [f"{launcher.max_restarts} of the workers"] if launcher else []
    if inprocess:
        again = " after each start of the workers" if workers else ""
        workers.insert(0, f"{inprocess.max_restarts} in process{again}")
    parts = [", ".join(workers)] if workers else []
    if kubernetes is not None:
        parts.append(
            f"{pod_restarts(facts.recipe)} pods of the Job" + (", each with a new budget" if parts else "")
        )
    text = ", then ".join(parts) or "none: a fault ends the run, the same command resumes it"
    if facts.faults:
        text += f"; {facts.faults} fault{'s' * (facts.faults > 1)} will be injected"
    yield "restarts", text
