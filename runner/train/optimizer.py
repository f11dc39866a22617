"""Optimiser, its state made at once, and the learning rate as a function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from runner.recipe.training import TrainingSection

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, training: TrainingSection, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the model's parameters; matrices decay, vectors (norms, biases) do not.

    The state is made here, as zeros, not in the first step: its layout must be known before anything is restored.
    """
    settings = training.optimizer
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = settings.fused if settings.fused is not None else device.type == "cuda"
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=fused,
        foreach=None if fused else device.type == "cuda",
    )
    for _, p in named:
        # Where AdamW itself would put them: on the device for the fused kernel, else on the CPU.
        step = torch.zeros((), dtype=torch.float32, device=device if fused else "cpu")
        optimizer.state[p] = {"step": step, **{moment: torch.zeros_like(p) for moment in MOMENTS}}
    return optimizer


def set_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Set the step counters: every parameter is updated in every step, so one number says all."""
    for state in optimizer.state.values():
        state["step"].fill_(float(step))


def learning_rate(step: int, training: TrainingSection) -> float:
    """Learning rate of step `step` (1 is the first): linear warm-up, then the recipe's curve."""
    schedule, peak = training.schedule, training.optimizer.lr
    if step <= schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.kind == "constant":
        return peak
    span = max(1, training.decay_steps - schedule.warmup_steps)
    done = min(1.0, (step - schedule.warmup_steps) / span)
    share = 0.5 * (1 + math.cos(math.pi * done)) if schedule.kind == "cosine" else 1 - done
    return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr
