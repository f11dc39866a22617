"""The loss: next-token cross-entropy, in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def next_token_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens of a micro batch; a float32 scalar.

    Args:
        model: returns an object with `logits` of shape (batch, sequence, vocabulary).
        inputs: token ids, int64, shape (batch, sequence).
        targets: the token that follows each input token, same shape. Sequences are packed, so all count.
    """
    logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
