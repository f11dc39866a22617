"""The GPU kernels of a first step, loaded beside the ranks' meeting and the restore of their state.

CUDA loads a kernel when it is first called, and cuBLAS makes its handles in the first product. In a new process that is
a good part of its first step, in which the GPU has next to nothing to do; after a respawn everybody waits for it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn import functional

from runner.recipe.recipe import Recipe
from runner.train.model import torch_dtype
from runner.train.sharding import compute_dtype

_TOKENS = 16


def load_kernels(recipe: Recipe, config: Any, device: torch.device) -> threading.Thread | None:
    """Begin to load what a step of the recipe's model calls, in a thread; None where there is nothing to load.

    Changes nothing that training sees: a few kilobytes of zeros on the GPU, no random number. What fails fails again in
    the first step, which reports it.

    Args:
        config: the model's transformers configuration.
    """
    if device.type != "cuda":
        return None
    arguments = (device, torch_dtype(recipe.model.param_dtype), compute_dtype(recipe), head_size(config))
    loader = threading.Thread(target=_load, args=arguments, name="load-kernels", daemon=True)
    loader.start()
    return loader


def head_size(config: Any) -> int:
    """Length of an attention head's vectors; that of most models where the configuration does not say it."""
    stated = getattr(config, "head_dim", None)
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    return int(stated or (width // heads if width and heads else 128))


def _load(device: torch.device, stored: torch.dtype, dtype: torch.dtype, head: int) -> None:
    try:
        torch.cuda.set_device(device)
        tiny_step(device, stored, dtype, head)
    except RuntimeError:  # out of memory, a lost context
        return


def tiny_step(device: torch.device, stored: torch.dtype, dtype: torch.dtype, head: int) -> None:
    """A step of a transformer of one block with two heads, of zeros: forward, backward, clipping, AdamW.

    Args:
        stored: type of the parameters.
        dtype: type of the computation.
        head: length of an attention head's vectors.
    """
    width = 2 * head
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long, device=device)
    table = torch.zeros(_TOKENS, width, dtype=stored, device=device, requires_grad=True)
    matrix = torch.zeros(width, width, dtype=stored, device=device, requires_grad=True)
    hidden = functional.embedding(tokens, table.to(dtype))
    heads = functional.linear(hidden, matrix.to(dtype)).view(1, _TOKENS, 2, head).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    hidden = hidden + functional.silu(mixed.transpose(1, 2).reshape(1, _TOKENS, width)) * hidden
    scale = torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    logits = functional.linear((hidden.float() * scale).to(dtype), table.to(dtype))
    functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
    gradients = [p.grad for p in (table, matrix) if p.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum().sqrt()
    torch.nn.utils.clip_grads_with_norm_([table, matrix], 1.0, norm)
    torch.optim.AdamW([table, matrix], lr=0.0, fused=device.type == "cuda").step()
