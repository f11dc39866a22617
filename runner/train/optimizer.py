"""Optimiser, its state made at once, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from runner.checkpoint.layout import local_tensor
from runner.recipe.training import TrainingSection

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardOptimizer:
    """AdamW and the clipping of gradients on this rank's shards, as plain tensors.

    Through DTensor they would be the same, but each new process would first derive how every operator on every shape is
    to be sharded: a good part of a second of the first step after a respawn.

    The moments are made here, as zeros, not in the first step: their layout must be known before anything is restored.
    Matrices decay, vectors (norms, biases) do not.

    Args:
        model: sharded or replicated, with memory for its parameters.
        training: the recipe's section.
        device: where the model is.

    Attributes:
        moments: parameter name -> name of the moment -> the moment, laid out as its parameter.
    """

    def __init__(self, model: nn.Module, training: TrainingSection, device: torch.device) -> None:
        settings = training.optimizer
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._shards = [nn.Parameter(local_tensor(p)) for p in self._params]
        self._groups = _sharded_over(self._params)
        groups = [
            {
                "params": [shard for shard, p in self._pairs() if p.ndim >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [shard for shard, p in self._pairs() if p.ndim < 2], "weight_decay": 0.0},
        ]
        fused = settings.fused if settings.fused is not None else device.type == "cuda"
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=fused,
            foreach=None if fused else device.type == "cuda",
        )
        self._limit = training.clip_norm if training.clip_norm is not None else float("inf")
        for shard in self._shards:
            # Where AdamW itself would put them: on the device for the fused kernel, else on the CPU.
            step = torch.zeros((), dtype=torch.float32, device=device if fused else "cpu")
            self._adamw.state[shard] = {"step": step} | {
                moment: torch.zeros_like(shard) for moment in MOMENTS
            }
        self._looked = False
        self._names = {p: name for name, p in model.named_parameters()}
        self.moments = {
            self._names[p]: {moment: like(self._adamw.state[shard][moment], p) for moment in MOMENTS}
            for shard, p in self._pairs()
        }

    def clip(self) -> torch.Tensor:
        """Clip the gradient, which is summed over the ranks by now; returns its norm before that, a float32 scalar.

        The norm is the same on all ranks: it is summed over those that share the parameters.

        Raises:
            RuntimeError: the model computes with other memory than is updated: FSDP has moved a shard.
        """
        if not self._looked:
            self._look()
        for shard, p in self._pairs():
            shard.grad = None if p.grad is None else local_tensor(p.grad)
        gradients = [shard.grad for shard in self._shards if shard.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum()
        for group in self._groups:
            dist.all_reduce(norm, group=group)
        norm = norm.sqrt()
        torch.nn.utils.clip_grads_with_norm_(self._shards, self._limit, norm)
        return norm

    def update(self, lr: float) -> None:
        """One step of AdamW with the gradients that `clip` saw; they are gone afterwards.

        A parameter that no rank has used (of a dropped layer, say) stays as it is; the step counts for it, too.

        Args:
            lr: learning rate of this step.
        """
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        for shard in self._shards:
            if shard.grad is None:
                self._adamw.state[shard]["step"] += 1
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Free the gradients."""
        for held in (*self._params, *self._shards):
            held.grad = None

    def set_step(self, step: int) -> None:
        """Set the step counters: every step counts for every parameter, so one number says all."""
        for state in self._adamw.state.values():
            state["step"].fill_(float(step))

    def release(self) -> None:
        """Let go of all tensors."""
        self.drop_gradients()
        self._adamw.state.clear()
        self._adamw.param_groups.clear()
        self.moments = {}
        self._params, self._shards, self._names = [], [], {}

    def _look(self) -> None:
        """Once a life, after its first backward: what is updated is what the model computes with."""
        moved = [
            self._names[p] for shard, p in self._pairs() if shard.data_ptr() != local_tensor(p).data_ptr()
        ]
        if moved:
            raise RuntimeError(
                f"{len(moved)} parameters, e.g. {moved[0]}, have moved in memory: they would not be trained; "
                "use sharding.strategy: ddp or another sharding.wrap"
            )
        self._looked = True

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        return zip(self._shards, self._params, strict=True)


def like(shard: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """`shard` laid out over the ranks as `param` is, sharing its memory; itself where `param` is not sharded."""
    if not isinstance(param, DTensor):
        return shard
    return DTensor.from_local(
        shard, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def _sharded_over(params: Iterable[torch.Tensor]) -> list[dist.ProcessGroup]:
    """The groups of ranks that share the parameters, which are all laid out alike; none where they are replicated."""
    for p in params:
        if isinstance(p, DTensor):
            return [p.device_mesh.get_group(dim) for dim, how in enumerate(p.placements) if how.is_shard()]
    return []


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
