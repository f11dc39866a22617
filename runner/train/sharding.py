"""Sharding: which modules are wrapped, and the model laid out over the ranks (FSDP2, HSDP or DDP)."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from runner.errors import InputError
from runner.recipe.recipe import Recipe
from runner.recipe.sharding import (
    DdpSharding,
    FsdpSharding,
    HsdpSharding,
    WrapByParams,
    WrapModules,
    WrapPolicy,
)
from runner.train.model import torch_dtype


def transformer_blocks(model: nn.Module) -> list[str]:
    """Names of the model's repeated blocks: the classes that transformers says must not be split."""
    classes = set(getattr(model, "_no_split_modules", None) or ())
    return [name for name, module in model.named_modules() if name and type(module).__name__ in classes]


def wrapped_modules(model: nn.Module, policy: WrapPolicy) -> list[str]:
    """Names of the modules that a wrap policy selects, outermost first.

    Raises:
        InputError: the policy selects nothing, with what it could have selected.
    """
    if isinstance(policy, WrapModules):
        known = {type(module).__name__ for _, module in model.named_modules()}
        absent = [name for name in policy.modules if name not in known]
        if absent:
            raise InputError(
                f"sharding.wrap: the model has no module of class {', '.join(absent)}; "
                f"it has {', '.join(sorted(known))}"
            )
        chosen = set(policy.modules)
        return [name for name, module in model.named_modules() if name and type(module).__name__ in chosen]
    if isinstance(policy, WrapByParams):
        names = _by_params(model, policy.min_params)
        if not names:
            most = max((_count(m) for name, m in model.named_modules() if name), default=0)
            raise InputError(
                f"sharding.wrap: no module holds {policy.min_params} parameters (the largest holds {most}); "
                "lower min_params"
            )
        return names
    names = transformer_blocks(model)
    if not names:
        raise InputError(
            f"sharding.wrap: {type(model).__name__} does not say which of its modules are transformer blocks; "
            "use {modules: [ClassName]} or {min_params: N}"
        )
    return names


def self_contained(model: nn.Module, units: list[str]) -> list[str]:
    """The units that share no parameter with what is outside them (tied embeddings): FSDP knows only those as shared
    that it gathers together, so the others are left to what holds them.

    Args:
        model: tied.
        units: from `wrapped_modules`.

    Raises:
        InputError: there are no others.
    """
    places: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, param in model.named_parameters(remove_duplicate=False):
        places[param].append(name)
    tied = [names for names in places.values() if len(names) > 1]
    kept = [
        unit
        for unit in units
        if all(len({name.startswith(f"{unit}.") for name in names}) == 1 for names in tied)
    ]
    if not kept:
        raise InputError(
            f"sharding.wrap: {', '.join(units)}: each shares a parameter with modules outside it "
            f"({' and '.join(tied[0])} are one), and cannot be wrapped by itself; wrap other modules, or set "
            "model.architecture.tie_word_embeddings: false"
        )
    return kept


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _by_params(model: nn.Module, least: int) -> list[str]:
    """Innermost first: a module is wrapped where what it holds outside wrapped children reaches `least`."""
    names: list[str] = []

    def visit(name: str, module: nn.Module) -> int:
        own = sum(p.numel() for p in module.parameters(recurse=False))
        own += sum(visit(f"{name}.{child}" if name else child, m) for child, m in module.named_children())
        # A list or dict of modules has no forward, so it cannot be wrapped; its parameters count for its owner.
        if name and own >= least and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            names.append(name)
            return 0
        return own

    visit("", model)
    order = {name: index for index, (name, _) in enumerate(model.named_modules())}
    return sorted(names, key=order.__getitem__)


def check_shardable(recipe: Recipe, model: nn.Module, world_size: int) -> None:
    """Refuse a world size over which the model cannot be laid out.

    Raises:
        InputError: more ranks than the largest dimension that is sharded, replicas that do not divide, or layers that
            ranks leave out each for itself.
    """
    sharding = recipe.sharding
    if isinstance(sharding, DdpSharding):
        return
    _refuse_dropped_layers(model)
    shards = world_size
    if isinstance(sharding, HsdpSharding):
        if world_size % sharding.replicas:
            raise InputError(
                f"sharding.replicas: {sharding.replicas} does not divide the world size {world_size}; "
                "ranks are split into that many equal groups"
            )
        shards = world_size // sharding.replicas
    rows = max(p.shape[0] for p in model.parameters() if p.ndim >= 2)
    if shards > rows:
        raise InputError(
            f"sharding: {shards} ranks cannot share matrices of {rows} rows; use fewer ranks, "
            "hsdp with replicas, or a wider model"
        )


def _refuse_dropped_layers(model: nn.Module) -> None:
    """Of a sharded layer all ranks gather the parts: one that leaves it out is waited for, in vain."""
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    for name in ("layerdrop", "decoder_layerdrop"):
        share = getattr(config, name, None)
        if share:
            raise InputError(
                f"model.architecture.{name}: {share}: each rank draws for itself which layers it leaves out, and "
                f"sharded layers need all ranks; use sharding.strategy: ddp, or {name}: 0.0"
            )


def build_mesh(recipe: Recipe, device: torch.device, world_size: int) -> DeviceMesh:
    """The device mesh of the strategy: one dimension, or (replicas, shards) for HSDP."""
    if isinstance(recipe.sharding, HsdpSharding):
        shape: tuple[int, ...] = (recipe.sharding.replicas, world_size // recipe.sharding.replicas)
        return init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard"))
    return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))


def compute_dtype(recipe: Recipe) -> torch.dtype:
    """In which forward and backward compute."""
    sharding = recipe.sharding
    stated = None if isinstance(sharding, DdpSharding) else sharding.compute_dtype
    return torch_dtype(stated or ("bfloat16" if recipe.training.precision == "bf16" else "float32"))


def shard_fsdp(model: nn.Module, recipe: Recipe, mesh: DeviceMesh, units: list[str]) -> None:
    """Apply `fully_shard` to the units and to the whole, in place (FSDP and HSDP).

    Args:
        model: on the meta device.
        recipe: the sharding and training sections.
        mesh: from `build_mesh`.
        units: from `wrapped_modules`.
    """
    sharding = recipe.sharding
    if not isinstance(sharding, FsdpSharding | HsdpSharding):
        raise TypeError("only fsdp and hsdp shard")
    compute = compute_dtype(recipe)
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute == torch_dtype(recipe.model.param_dtype) else compute,
        reduce_dtype=torch_dtype(sharding.reduce_dtype),
    )
    for name in reversed(units):  # children before the parents that hold them
        fully_shard(
            model.get_submodule(name),
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=sharding.reshard_after_forward,
        )
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """DistributedDataParallel.

    `find_unused_parameters` keeps DDP from rebuilding its buckets after the first backward: rebuilt buckets sum
    in another order, and a resumed run, whose first step is another one, would differ in the last bit.
    """
    return nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=True,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )


def set_gradient_sync(model: nn.Module, sync: bool) -> None:
    """Sum gradients over the ranks in the next backward, or only accumulate them locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(sync)
        model.set_is_last_backward(sync)
    elif isinstance(model, nn.parallel.DistributedDataParallel):
        model.require_backward_grad_sync = sync
