"""`sharding`: how parameters are laid out over the ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.recipe.fields import PositiveInt, Section, Words


class WrapByParams(Section):
    """Wrap every module that holds at least so many parameters of its own and of unwrapped children."""

    min_params: PositiveInt
    """Number of parameters."""


class WrapModules(Section):
    """Wrap the modules of these classes."""

    modules: Annotated[Words, Field(min_length=1)]
    """Class names, e.g. `[LlamaDecoderLayer]`."""


WrapPolicy = Literal["transformer_block"] | WrapByParams | WrapModules


class DdpSharding(Section):
    """Every rank holds all parameters (DistributedDataParallel)."""

    strategy: Literal["ddp"]


class _Fsdp(Section):
    wrap: WrapPolicy = "transformer_block"
    """Which modules are gathered and freed as one: `transformer_block` (the model's repeated blocks),
    `{min_params: N}` or `{modules: [ClassName]}`. A policy that wraps nothing is an error. A module that shares a
    parameter with what is outside it (tied embeddings) is left to what holds both."""

    reshard_after_forward: bool = True
    """Free gathered parameters between forward and backward. False is faster and takes more memory."""

    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Format of parameters in forward and backward. Default: bfloat16 where `training.precision` is bf16."""

    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Format in which gradients are summed over the ranks."""


class FsdpSharding(_Fsdp):
    """Parameters, gradients and optimiser state are sharded over all ranks (FSDP2, `fully_shard`)."""

    strategy: Literal["fsdp"]


class HsdpSharding(_Fsdp):
    """Sharded inside a group, replicated over groups."""

    strategy: Literal["hsdp"]
    replicas: PositiveInt
    """Number of groups; the world size must be a multiple of it."""


ShardingSection = Annotated[DdpSharding | FsdpSharding | HsdpSharding, Field(discriminator="strategy")]
