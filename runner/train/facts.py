"""What the ledger says about the model: parameters, FLOPs a token, the device's peak."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runner.ledger.events import ModelBuilt
from runner.ledger.flops import flops_per_token, peak_flops
from runner.recipe.recipe import Recipe


def model_facts(module: nn.Module, config: Any, recipe: Recipe, device: torch.device) -> ModelBuilt:
    """The facts of a built model, sharded or not (a DTensor counts in full).

    Args:
        config: the transformers configuration it was built from.
    """
    parameters = sum(parameter.numel() for parameter in module.parameters())
    looked_up = 0
    if not getattr(config, "tie_word_embeddings", False):
        looked_up = sum(
            parameter.numel()
            for part in module.modules()
            if isinstance(part, nn.Embedding)
            for parameter in part.parameters()
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return ModelBuilt(
        parameters=parameters,
        flops_per_token=flops_per_token(
            parameters - looked_up,
            config.num_hidden_layers,
            config.hidden_size,
            recipe.dataset.sequence_length,
        ),
        device=name,
        peak_flops=peak_flops(name, recipe.training.precision),
    )
