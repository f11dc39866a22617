"""A model's first weights: drawn as its architecture prescribes, or read from published files; each rank its share."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from runner.errors import InputError
from runner.train.hub import hub_errors


def fill_random(
    model: nn.Module,
    skeleton: nn.Module,
    constructed: Mapping[str, torch.Tensor],
    units: list[str],
    seed: int,
    device: torch.device,
) -> None:
    """Initialise as the architecture prescribes, one unit at a time, alike for every number of ranks.

    Args:
        model: sharded and allocated.
        skeleton: the same model, unsharded, on the meta device.
        constructed: values of small parameters as the model's constructor left them (`Skeleton.constructed`).
        units: names of the wrapped modules; what is outside them is one more unit.
        seed: each unit draws from (seed, its name), so that the values do not depend on the sharding.
        device: where values are drawn; CPU and GPU draw different ones.

    Raises:
        InputError: nothing says what a parameter begins with.
    """
    owners = dict(model.named_parameters())
    for unit in [*units, ""]:
        module = skeleton.get_submodule(unit) if unit else skeleton
        inside = [
            name for name, p in module.named_parameters(unit) if p.is_meta and _unit_of(name, units) == unit
        ]
        holders = {name.rpartition(".")[0] for name in inside}
        for name in inside:
            _replace(skeleton, name, torch.empty_like(skeleton.get_parameter(name), device=device))
        _seed(seed, unit)
        with torch.no_grad():
            for name in inside:
                _mark(skeleton.get_parameter(name))
            for name, child in _post_order(module, unit):
                if name in holders or any(p.device == device for p in child.parameters()):
                    _init_module(skeleton, child)
            for name in inside:
                _complete(name, skeleton.get_parameter(name), constructed)
                if name in owners:
                    _copy_shard(owners[name], skeleton.get_parameter(name))
        for name in inside:
            _replace(skeleton, name, skeleton.get_parameter(name).detach().to("meta"))


def _mark(param: torch.Tensor) -> None:
    """Fill it with what no initialisation writes, so that one that is passed over shows."""
    param.fill_(math.nan if param.is_floating_point() else 0)


def _complete(name: str, param: torch.Tensor, constructed: Mapping[str, torch.Tensor]) -> None:
    """Parameters that `_init_weights` passes over keep what the model's constructor gave them."""
    if param.is_floating_point() and not param.sum(dtype=torch.float32).isnan():
        return
    if name not in constructed:
        raise InputError(
            f"model.weights: random: transformers does not say what {name} begins with (its model's constructor "
            "alone does); use weights: pretrained, or another architecture"
        )
    param.copy_(constructed[name])


def _unit_of(name: str, units: list[str]) -> str:
    inside = [unit for unit in units if name.startswith(f"{unit}.")]
    return max(inside, key=len, default="")


def _post_order(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        yield from _post_order(child, f"{name}.{child_name}" if name else child_name)
    yield name, module


def _init_module(skeleton: nn.Module, module: nn.Module) -> None:
    if all(not p.is_meta for p in module.parameters(recurse=False)):
        skeleton._init_weights(module)  # type: ignore[operator]


def _seed(seed: int, name: str) -> None:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _replace(module: nn.Module, name: str, value: torch.Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    held = module.get_submodule(owner)._parameters
    before = held[leaf]
    assert before is not None
    held[leaf] = nn.Parameter(
        value, requires_grad=before.requires_grad
    )  # the next life is built from it, too


def _copy_shard(param: torch.Tensor, full: torch.Tensor) -> None:
    """Copy this rank's part of `full` (global shape) into `param`, without communication."""
    if isinstance(param, DTensor):
        shard = distribute_tensor(full, param.device_mesh, param.placements, src_data_rank=None)
        param.to_local().copy_(shard.to_local())
    else:
        param.copy_(full)


def fill_pretrained(model: nn.Module, name: str, revision: str | None, base_prefix: str) -> None:
    """Load published weights, each rank reading only what it holds.

    Args:
        model: sharded and allocated.
        name: hub id or folder.
        revision: of the hub repository.
        base_prefix: prefix that checkpoints of the bare model lack (`transformer` for GPT-2).

    Raises:
        InputError: it does not exist, has no safetensors files, or lacks a parameter.
    """
    files = _safetensors_files(name, revision)
    from safetensors import safe_open

    wanted = dict(model.named_parameters())
    missing = set(wanted)
    for file in files:
        with safe_open(file, framework="pt") as handle, torch.no_grad():
            for key in handle.keys():  # noqa: SIM118  (not a mapping)
                target = key if key in wanted else f"{base_prefix}.{key}"
                if target in missing:
                    _copy_slice(wanted[target], handle.get_slice(key), f"{name}: {key}")
                    missing.remove(target)
    if missing:
        raise InputError(
            f"model.name: the weights of {name} lack {len(missing)} parameters of its own configuration, "
            f"e.g. {min(missing)}; re-save the model with save_pretrained, or use weights: random"
        )


def _copy_slice(param: torch.Tensor, stored: Any, what: str) -> None:
    shape = tuple(stored.get_shape())
    if shape != tuple(param.shape):
        raise InputError(
            f"model.name: {what} has the shape {shape}, the configuration asks for {tuple(param.shape)}"
        )
    if not isinstance(param, DTensor):
        param.copy_(stored[...])
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    if 0 not in local:
        param.to_local().copy_(stored[tuple(slice(o, o + n) for o, n in zip(offset, local, strict=True))])


def _safetensors_files(name: str, revision: str | None) -> list[str]:
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

    with hub_errors("model", name):
        index = cached_file(
            name, SAFE_WEIGHTS_INDEX_NAME, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        if index is None:
            single = cached_file(
                name, SAFE_WEIGHTS_NAME, revision=revision, _raise_exceptions_for_missing_entries=False
            )
            if single is None:
                for file in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME):
                    _raise_unless_missing(name, file, revision)
                raise InputError(
                    f"model.name: {name} has no safetensors files; re-save it with save_pretrained"
                )
            return [single]
        parts = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
        return [cached_file(name, part, revision=revision) for part in parts]


def _raise_unless_missing(name: str, file: str, revision: str | None) -> None:
    """transformers says of a file that it is missing where the hub did not answer, too.

    Raises:
        OSError: the hub did not say whether the model has this file.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError
    from transformers.utils import cached_file

    try:
        cached_file(name, file, revision=revision)
    except OSError as error:
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            raise
