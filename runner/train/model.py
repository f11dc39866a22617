"""The model: built without memory, sharded, and only then filled: from its checkpoint, from the hub or at random."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from runner.errors import InputError
from runner.recipe.model import ModelSection
from runner.recipe.words import close_matches
from runner.train.hub import hub_errors

_CAUSAL = "causal_sdpa"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a recipe's name for it."""
    return _DTYPES[name]


def model_config(model: ModelSection, vocab_size: int) -> Any:
    """The transformers configuration that a recipe declares.

    Args:
        model: the recipe's section.
        vocab_size: tokens of the tokenizer; used where the architecture does not say.

    Raises:
        InputError: unknown model, type or key.
    """
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers import __version__ as transformers_version

    overrides = dict(model.architecture or {})
    if model.name is not None:
        kind = overrides.pop("model_type", None)
        with hub_errors("model", model.name):
            config, unused = AutoConfig.from_pretrained(
                model.name, revision=model.revision, return_unused_kwargs=True, **overrides
            )
        if kind not in (None, config.model_type):
            raise InputError(
                f"model.architecture.model_type: {kind}, but {model.name} is a {config.model_type} model; "
                "leave `model_type` out, or `name`"
            )
        _refuse_unknown(set(unused) - {"revision"}, config)
    else:
        overrides.setdefault("vocab_size", vocab_size)
        kind = overrides.pop("model_type")
        if kind not in CONFIG_MAPPING:
            near = close_matches(kind, CONFIG_MAPPING.keys())
            meant = f"did you mean `{near[0]}`?" if near else "see the list of models in its documentation"
            raise InputError(
                f"model.architecture: transformers {transformers_version} knows no model_type {kind!r}; {meant}"
            )
        try:
            config = AutoConfig.for_model(kind, **overrides)
        except ValueError as error:
            reason = str(error).split("\n")[0]
            raise InputError(f"model.architecture: no {kind} model can have it: {reason}") from error
        # transformers keeps as they are those that it does not know; older names (rope_theta) and names of other
        # families (gpt2's hidden_size) become settings of this one.
        kept = set(overrides) & set(config.to_dict())
        _refuse_unknown(kept - set(type(config)().to_dict()), config)
    text = config.get_text_config()
    if text.vocab_size < vocab_size:
        raise InputError(
            f"model: its vocabulary of {text.vocab_size} is smaller than the tokenizer's {vocab_size}; "
            "choose the model's own tokenizer (dataset.tokenizer)"
        )
    config.use_cache = False
    config._attn_implementation = _attention(model.attention, text)
    return config


def _refuse_unknown(keys: set[str], config: Any) -> None:
    if keys:
        known = set(config.to_dict()) - keys
        near = [word for key in sorted(keys) for word in close_matches(key, known)]
        raise InputError(
            f"model.architecture: {config.model_type} has no setting {', '.join(sorted(keys))}; "
            + (f"did you mean {', '.join(near)}? " if near else "")
            + f"see transformers' {type(config).__name__}"
        )


def _attention(wanted: str, text: Any) -> str:
    """Name of the attention function.

    transformers' `sdpa` looks at the position ids in every forward to see whether sequences are packed, which makes
    the host wait for the GPU (and for a snapshot under way, which shares the copy engine). Ours are whole and
    causal, so the same function is registered under a name for which transformers makes no mask; it then is causal
    by itself. Models with windows keep their masks.
    """
    if wanted != "sdpa" or getattr(text, "sliding_window", None) is not None:
        return wanted
    if any(kind != "full_attention" for kind in getattr(text, "layer_types", None) or ()):
        return wanted
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_CAUSAL, sdpa_attention_forward)
    return _CAUSAL


def build_on_meta(config: Any, model: ModelSection) -> nn.Module:
    """The model with parameters on the meta device and buffers (rotary tables) computed on the CPU.

    Raises:
        InputError: transformers has no causal language model of this configuration.
    """
    from transformers import AutoModelForCausalLM

    try:
        with _parameters_on_meta():
            built: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch_dtype(model.param_dtype))
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"model: {type(config).__name__} cannot be built: {reason}") from error
    if model.activation_checkpointing:
        built.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    built.train()
    return built


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device as it is registered; buffers stay real.

    `torch.device("meta")` would also take the buffers, which hold values (rotary frequencies) that no checkpoint
    carries. Parameters are registered before they are initialised, so nothing is computed for them.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None:
            module._parameters[name] = nn.Parameter(
                param.detach().to("meta"), requires_grad=param.requires_grad
            )

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give every parameter memory on `device` (contents undefined) and move the buffers there."""
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
    model.tie_weights()  # type: ignore[operator]


def fill_random(
    model: nn.Module, skeleton: nn.Module, units: list[str], seed: int, device: torch.device
) -> None:
    """Initialise as the architecture prescribes, one unit at a time, alike for every number of ranks.

    Args:
        model: sharded and allocated.
        skeleton: the same model, unsharded, on the meta device.
        units: names of the wrapped modules; what is outside them is one more unit.
        seed: each unit draws from (seed, its name), so that the values do not depend on the sharding.
        device: where values are drawn; CPU and GPU draw different ones.
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
            for name, child in _post_order(module, unit):
                if name in holders or any(p.device == device for p in child.parameters()):
                    _init_module(skeleton, child)
            for name in inside:
                if name in owners:
                    _copy_shard(owners[name], skeleton.get_parameter(name))
        for name in inside:
            _replace(skeleton, name, skeleton.get_parameter(name).detach().to("meta"))


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
    module.get_submodule(owner)._parameters[leaf] = nn.Parameter(value, requires_grad=True)


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
                raise InputError(
                    f"model.name: {name} has no safetensors files; re-save it with save_pretrained"
                )
            return [single]
        parts = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
        return [cached_file(name, part, revision=revision) for part in parts]
