"""The model: built without memory, to be sharded and only then filled (`weights`, or from a checkpoint)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runner.errors import InputError
from runner.recipe.known_models import ENCODERS, LOOKS_AHEAD
from runner.recipe.model import ModelSection
from runner.recipe.words import close_matches
from runner.train.hub import hub_errors

_CAUSAL = "causal_sdpa"
_SMALL = 1 << 14  # elements; norms, biases and the like, whose values are kept as the constructor made them
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
    if text.model_type in ENCODERS and not text.is_decoder:
        raise InputError(f"model.architecture: {LOOKS_AHEAD.format(text.model_type)}; set is_decoder: true")
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

    AttentionInterface.register(_CAUSAL, _causal_sdpa)
    return _CAUSAL


def _causal_sdpa(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **settings: Any,
) -> Any:
    """transformers' `sdpa`. A mask is one of the model's own (Doge's): nobody else has made it causal."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is not None:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if attention_mask.dtype == torch.bool:
            attention_mask = attention_mask & seen
        else:
            attention_mask = attention_mask.masked_fill(~seen, torch.finfo(attention_mask.dtype).min)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)


@dataclass(frozen=True)
class Skeleton:
    """A model without memory.

    Attributes:
        module: its parameters are on the meta device; its buffers are real.
        constructed: values of its small parameters as the constructor left them: of some (activation functions'
            slopes, say) they are said nowhere else.
    """

    module: nn.Module
    constructed: dict[str, torch.Tensor]


def build_on_meta(config: Any, model: ModelSection) -> Skeleton:
    """The model with parameters on the meta device and buffers (rotary tables) computed on the CPU.

    Raises:
        InputError: transformers has no causal language model of this configuration.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.random.fork_rng(devices=()), _large_parameters_on_meta():
            torch.manual_seed(0)  # what a constructor draws is the same in every process
            built: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch_dtype(model.param_dtype))
    except (
        ValueError,
        ImportError,
        AssertionError,
        TypeError,
        AttributeError,
        KeyError,
        RuntimeError,
    ) as error:
        reason = " ".join(str(error).split())[:300]
        if "scaled_dot_product_attention" in reason:
            name = type(config).__name__.removesuffix("Config")
            raise InputError(
                f"model.attention: {model.attention} is not there for {name} models; use eager"
            ) from error
        raise InputError(f"model: {type(config).__name__} cannot be built: {reason}") from error
    if model.activation_checkpointing:
        built.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    built.train()
    return Skeleton(built, _rest_to_meta(built))


@contextmanager
def _large_parameters_on_meta() -> Iterator[None]:
    """Move each large parameter to the meta device as it is registered; small ones and buffers stay real.

    `torch.device("meta")` would also take the buffers, which hold values (rotary frequencies) that no checkpoint
    carries. Parameters are registered before they are initialised, so nothing is computed for them.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and param.numel() > _SMALL:
            module._parameters[name] = _on_meta(param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _rest_to_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    """Move the parameters that are still real to the meta device; returns their values."""
    values = {name: p.detach() for name, p in model.named_parameters() if not p.is_meta}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None and not param.is_meta:
                module._parameters[name] = _on_meta(param)
    return values


def _on_meta(param: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give every parameter memory on `device` (contents undefined) and move the buffers there."""
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
    model.tie_weights()  # type: ignore[operator]
