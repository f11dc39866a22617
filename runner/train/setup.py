"""One life's model, optimiser and state, put together; and the parts of start-up that outlive a life."""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from runner.errors import InputError
from runner.recipe.derived import uses_gpus
from runner.recipe.recipe import Recipe
from runner.recipe.sharding import DdpSharding
from runner.train.data.tokenizer import Tokenizer
from runner.train.decided import decided
from runner.train.model import allocate, build_on_meta, model_config
from runner.train.optimizer import ShardOptimizer
from runner.train.ports import TrainState
from runner.train.sharding import (
    build_mesh,
    check_shardable,
    replicate,
    self_contained,
    shard_fsdp,
    transformer_blocks,
    wrapped_modules,
)
from runner.train.weights import fill_pretrained, fill_random


def pick_device(recipe: Recipe, local_rank: int) -> torch.device:
    """The device of a rank.

    Raises:
        InputError: CUDA is asked for and there is no such GPU.
    """
    if not uses_gpus(recipe, present=torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.cuda.device_count() <= local_rank:
        raise InputError(
            f"cluster.accelerator: cuda needs a GPU for each rank, and local rank {local_rank} finds "
            f"{torch.cuda.device_count()} of them; use cluster.accelerator: cpu or fewer cluster.processes_per_node"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def configure_backend(recipe: Recipe, device: torch.device, local_world_size: int) -> None:
    """Threads, number formats and determinism for this process."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_world_size))
    torch.backends.cuda.matmul.allow_tf32 = recipe.training.precision == "bf16"
    if recipe.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def seed_micro_batch(seed: int, step: int, index: int) -> None:
    """Make everything random in a micro batch a function of (seed, step, its place in the global batch).

    So dropout is the same after a restart, and at any number of ranks of the same micro batch size.
    """
    mixed = int(np.random.SeedSequence((seed, step, index)).generate_state(1, np.uint64)[0])
    torch.manual_seed(mixed >> 1)  # every generator of torch, CUDA included
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)


@dataclass
class Workload:
    """What a life trains. `model` is what is called; `module` the same without a DDP wrapper."""

    model: nn.Module
    module: nn.Module
    optimizer: ShardOptimizer
    state: TrainState

    def release(self) -> None:
        """Let go of everything, so that memory is free although somebody still holds this object."""
        self.optimizer.release()
        self.state.tensors = {}
        self.state.on_restored = _nothing
        self.module = self.model = nn.Identity()


def _nothing() -> None:
    pass


class ModelFactory:
    """Builds a life's workload; keeps what does not depend on process groups between lives of a process.

    Args:
        recipe: the run.
        tokenizer: its vocabulary decides that of a model given by its architecture.

    Raises:
        InputError: the model is unknown or the wrap policy selects nothing.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self._recipe = recipe
        self.config = model_config(recipe.model, tokenizer.vocab_size)
        built = build_on_meta(self.config, recipe.model)
        self.skeleton, self._constructed = built.module, built.constructed
        self._decided = decided(recipe, self.config)
        self._blocks = transformer_blocks(self.skeleton)
        sharding = recipe.sharding
        self._units = (
            [] if isinstance(sharding, DdpSharding) else wrapped_modules(self.skeleton, sharding.wrap)
        )

    def build(self, device: torch.device, world_size: int) -> Workload:
        """Model and optimiser with undefined contents, laid out over the ranks of the default process group."""
        recipe = self._recipe
        check_shardable(recipe, self.skeleton, world_size)
        module = copy.deepcopy(self.skeleton)
        if not isinstance(recipe.sharding, DdpSharding):
            # Tied first: what FSDP takes for two parameters it keeps apart where a rank's part is padded.
            module.tie_weights()  # type: ignore[operator]
            units = self_contained(module, self._units)
            shard_fsdp(module, recipe, build_mesh(recipe, device, world_size), units)
        allocate(module, device)
        if recipe.model.compile:
            for name in self._blocks:
                module.get_submodule(name).compile()
        optimizer = ShardOptimizer(module, recipe.training, device)
        model = replicate(module, device) if isinstance(recipe.sharding, DdpSharding) else module
        state = _train_state(module, optimizer)
        state.decided = self._decided
        return Workload(model, module, optimizer, state)

    def fill(self, workload: Workload, device: torch.device) -> None:
        """First weights of a run: pretrained or random; moments zero."""
        model = self._recipe.model
        if model.pretrained and model.name is not None:
            prefix = getattr(self.skeleton, "base_model_prefix", "")
            fill_pretrained(workload.module, model.name, model.revision, prefix)
        else:
            seed = self._recipe.training.seed
            fill_random(workload.module, self.skeleton, self._constructed, self._blocks, seed, device)


def _train_state(module: nn.Module, optimizer: ShardOptimizer) -> TrainState:
    tensors: dict[str, torch.Tensor] = {}
    for name, p in module.named_parameters():
        tensors[f"model.{name}"] = p.detach()
    buffers = {f"model.{name}" for name in persistent_buffers(module)}
    for name, buffer in module.named_buffers():
        if f"model.{name}" in buffers:
            tensors[f"model.{name}"] = buffer
    for name, _ in module.named_parameters():
        for moment, tensor in optimizer.moments.get(name, {}).items():
            tensors[f"optim.{moment}.{name}"] = tensor
    state = TrainState(tensors, frozenset(buffers))

    def restored() -> None:
        optimizer.set_step(state.step)

    state.on_restored = restored
    return state


def persistent_buffers(module: nn.Module) -> list[str]:
    """Names of the buffers that a checkpoint holds."""
    names = []
    for prefix, child in module.named_modules():
        for name in child._buffers:
            if name not in child._non_persistent_buffers_set and child._buffers[name] is not None:
                names.append(f"{prefix}.{name}" if prefix else name)
    return names
