"""R3xx: model, data and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.estimate import compute_width, shards
from runner.recipe.known_models import ENCODERS, LOOKS_AHEAD
from runner.recipe.shape import BYTES_VOCABULARY, KNOWN_TYPES, shape_keys
from runner.recipe.words import close_matches

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_MOST_TRIED = 10_000  # divisors; more ranks than that are a typing error, which other rules see
_COMMON = ("Embedding", "Linear")
_LLAMA = ("DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding", "Model", "ForCausalLM")
_MODULES = {
    **{
        kind: tuple(prefix + name for name in _LLAMA) + _COMMON
        for kind, prefix in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"),
                             ("phi3", "Phi3"))
    },
    "gpt2": ("GPT2Block", "GPT2Attention", "GPT2MLP", "GPT2Model", "GPT2LMHeadModel", "Conv1D", "LayerNorm", *_COMMON),
    "gpt_neox": ("GPTNeoXLayer", "GPTNeoXAttention", "GPTNeoXMLP", "GPTNeoXModel", "GPTNeoXForCausalLM",
                 "GPTNeoXRotaryEmbedding", "LayerNorm", *_COMMON),
}  # fmt: skip


@rule("R301")
def model_has_a_source(recipe: Recipe, report: Report) -> None:
    """`model` must say what to build: `name`, or `architecture` with its `model_type`."""
    model = recipe.model
    if model.name is None and model.architecture is None:
        hint = "give `name` (hub id or folder) or `architecture` (the shape itself)"
        report.add("model", "neither `name` nor `architecture` is given", hint)
    elif model.name is None and not isinstance((model.architecture or {}).get("model_type"), str):
        hint = "add the transformers type, e.g. `model_type: llama`"
        report.add("model.architecture", "`model_type` is missing or no text", hint)


@rule("R302")
def pretrained_weights_have_a_name(recipe: Recipe, report: Report) -> None:
    """`model.weights: pretrained` needs `model.name`: an architecture alone has no weights."""
    if recipe.model.weights == "pretrained" and recipe.model.name is None:
        report.add(
            "model.weights", "an architecture alone has no weights", "give `model.name`, or `weights: random`"
        )


@rule("R303")
def shape_is_a_shape(recipe: Recipe, report: Report) -> None:
    """The model's configuration must describe a model: sizes that are positive integers and divide each other.

    Heads must divide the width, key-value heads must divide heads.
    """
    error = report.facts.shape_error
    if error is not None:
        written = recipe.model.architecture or {}
        path = "model.architecture" if recipe.model.name is None else "model"
        path = f"model.architecture.{error.key}" if error.key in written else path
        report.add(path, str(error), "correct the architecture")


@rule("R304")
def wrapped_modules_exist(recipe: Recipe, report: Report) -> None:
    """`sharding.wrap.modules` must name classes that the model has.

    A policy that wraps nothing gathers the whole model on every GPU.
    """
    names = getattr(getattr(recipe.sharding, "wrap", None), "modules", None)
    shape = report.facts.shape
    if names is None or shape is None or shape.model_type not in _MODULES:
        return
    known = _MODULES[shape.model_type]
    for index, name in enumerate(names):
        if name not in known:
            near = close_matches(name, known, cutoff=0.4)
            report.add(
                f"sharding.wrap.modules[{index}]",
                f"a {shape.model_type} model has no module of class {name}",
                f"did you mean `{near[0] if near else known[0]}`? Or use `wrap: transformer_block`",
            )


@rule("R305")
def min_params_wraps_something(recipe: Recipe, report: Report) -> None:
    """`sharding.wrap.min_params` must not exceed the model's parameters: it would wrap nothing."""
    least = getattr(getattr(recipe.sharding, "wrap", None), "min_params", None)
    shape = report.facts.shape
    if least is not None and shape is not None and least > shape.parameters:
        report.add(
            "sharding.wrap.min_params",
            f"{least:,} is more than the model's {shape.parameters:,} parameters: nothing would be wrapped",
            f"a block has {shape.block:,}: use about that, or `wrap: transformer_block`",
        )


@rule("R306")
def every_rank_gets_a_shard(recipe: Recipe, report: Report) -> None:
    """Parameters must be large enough to be cut into one shard a rank.

    Sharding cuts the first dimension. Past the model's width, ranks hold nothing of the norms and biases, and a rank
    that has nothing to write can stall the asynchronous writer.
    """
    shape, ranks = report.facts.shape, report.facts.ranks
    if shape is None or ranks is None:
        return
    cut = shards(recipe, ranks)
    if cut > shape.hidden:
        report.add(
            "sharding.strategy",
            f"{cut} ranks cannot share parameters of {shape.hidden} rows (the model's width)",
            "use fewer ranks, `strategy: hsdp` with more replicas, or `strategy: ddp`",
        )


@rule("R307")
def replicas_divide_ranks(recipe: Recipe, report: Report) -> None:
    """`sharding.replicas` must divide the number of ranks."""
    replicas, ranks = getattr(recipe.sharding, "replicas", None), report.facts.ranks
    if replicas is not None and ranks is not None and ranks % replicas:
        fitting = max(d for d in range(1, min(replicas, ranks, _MOST_TRIED) + 1) if ranks % d == 0)
        report.add(
            "sharding.replicas", f"{ranks} ranks do not divide into {replicas} groups", f"use {fitting}"
        )


@rule("R308", "warning")
def hsdp_shards_something(recipe: Recipe, report: Report) -> None:
    """As many `sharding.replicas` as ranks shard nothing: that is DDP with more traffic."""
    replicas, ranks = getattr(recipe.sharding, "replicas", None), report.facts.ranks
    if replicas is not None and ranks is not None and ranks > 1 and replicas == ranks:
        report.add(
            "sharding.replicas",
            f"{replicas} groups of one rank shard nothing",
            "use `strategy: ddp`, or fewer",
        )


@rule("R309")
def sequence_fits_positions(recipe: Recipe, report: Report) -> None:
    """`dataset.sequence_length` must not exceed the positions that the model has learnt embeddings for."""
    shape, length = report.facts.shape, recipe.dataset.sequence_length
    if shape is not None and shape.positions is not None and length > shape.positions:
        report.add(
            "dataset.sequence_length",
            f"{length} tokens are more than the model's {shape.positions} positions",
            f"use at most {shape.positions}",
        )


@rule("R316", "warning")
def sequence_fits_the_configuration(recipe: Recipe, report: Report) -> None:
    """`dataset.sequence_length` should not exceed the `max_position_embeddings` that `model.architecture` states.

    Rotary embeddings have no end, so training goes on beyond it. What serves the exported model takes the
    configuration's word for the longest sequence.
    """
    shape, length = report.facts.shape, recipe.dataset.sequence_length
    stated = (recipe.model.architecture or {}).get("max_position_embeddings")
    learnt = shape is None or shape.positions is not None
    if not learnt and isinstance(stated, int) and length > stated:
        report.add(
            "dataset.sequence_length",
            f"{length} tokens are more than the {stated} positions of the model's configuration",
            f"state max_position_embeddings: {length}, or use at most {stated}",
            also="model.architecture.max_position_embeddings",
        )


@rule("R310")
def flash_attention_fits(recipe: Recipe, report: Report) -> None:
    """`model.attention: flash_attention_2` needs GPUs and 16-bit numbers."""
    if recipe.model.attention != "flash_attention_2":
        return
    if report.facts.on_gpus is False:
        report.add(
            "model.attention", "flash_attention_2 runs on GPUs only", "use `sdpa`", also="cluster.accelerator"
        )
    elif compute_width(recipe) != 2:
        report.add(
            "model.attention",
            "flash_attention_2 computes in 16 bits and this run in 32",
            "use `sdpa`, or `training.precision: bf16`",
            also="training.precision",
        )


@rule("R311")
def text_has_a_tokenizer(recipe: Recipe, report: Report) -> None:
    """`dataset.tokenizer` must be given where the model has none of its own."""
    dataset = recipe.dataset
    if dataset.tokenizer is None and dataset.source != "embedded" and recipe.model.name is None:
        report.add(
            "dataset.tokenizer",
            "an architecture has no tokenizer of its own",
            "name a hub id or folder, or `bytes`",
            also="dataset.source",
        )


@rule("R312")
def vocabulary_covers_bytes(recipe: Recipe, report: Report) -> None:
    """The model's vocabulary must hold every token of the `bytes` tokenizer."""
    dataset, shape = recipe.dataset, report.facts.shape
    bytewise = dataset.tokenizer == "bytes" or (dataset.tokenizer is None and dataset.source == "embedded")
    if bytewise and shape is not None and shape.vocab < BYTES_VOCABULARY:
        report.add(
            "model.architecture.vocab_size",
            f"{shape.vocab} tokens are fewer than the {BYTES_VOCABULARY} of the `bytes` tokenizer",
            "leave vocab_size out: it then follows from the tokenizer",
            also="dataset.tokenizer",
        )


@rule("R313", "warning")
def bf16_weights_train_badly(recipe: Recipe, report: Report) -> None:
    """`model.param_dtype: bfloat16` loses updates smaller than 1/256 of a weight.

    AdamW's updates are about the learning rate in size; stored in bfloat16 most of them round to nothing.
    """
    if recipe.model.param_dtype == "bfloat16" and recipe.training.optimizer.lr < 1e-3:
        report.add(
            "model.param_dtype",
            f"updates of about lr {recipe.training.optimizer.lr:g} mostly round away in bfloat16 weights",
            "keep `float32` (compute is bf16 anyway by `training.precision`)",
            also="training.optimizer.lr",
        )


def _looks_ahead(recipe: Recipe) -> bool:
    own = recipe.model.architecture or {}
    kind = own.get("model_type")
    encodes = recipe.model.name is None and isinstance(kind, str) and kind in ENCODERS
    return encodes and not own.get("is_decoder")


@rule("R317")
def model_is_causal(recipe: Recipe, report: Report) -> None:
    """An encoder (`bert`, `roberta`, ...) must be declared a decoder: else it sees the tokens that it is to predict.

    Its loss would fall to nothing, and it would have learnt nothing. Models of a hub are looked at when the run starts.
    """
    if _looks_ahead(recipe):
        report.add(
            ("model", "architecture", "model_type"),
            LOOKS_AHEAD.format((recipe.model.architecture or {})["model_type"]),
            "set `is_decoder: true` beside it",
            also="model.architecture.is_decoder",
        )


@rule("R315", "warning")
def architecture_is_spelt_right(recipe: Recipe, report: Report) -> None:
    """A key of `model.architecture` should not be nearly one of those that decide the size of the model's type.

    Here it counts for nothing, and the default of the key that was meant is what all estimates are made of. The run
    asks transformers, and is refused.
    """
    own, shape = recipe.model.architecture or {}, report.facts.shape
    kind = shape.model_type if shape is not None else own.get("model_type")
    if not isinstance(kind, str) or kind not in KNOWN_TYPES:
        return
    known = shape_keys(kind)
    for key in own:
        near = [] if key in known else close_matches(key, known, cutoff=0.85)
        if near:
            report.add(
                ("model", "architecture", key),
                f"{key} is no key that decides the size of a {kind} model",
                f"did you mean `{near[0]}`?",
            )


@rule("R314", "warning")
def architecture_is_known(recipe: Recipe, report: Report) -> None:
    """`model.architecture.model_type` should be a type whose size follows from its keys.

    Of others nothing is known before the run: neither memory nor the size of a checkpoint is checked, nor whether
    transformers has such a type at all.
    """
    kind = (recipe.model.architecture or {}).get("model_type")
    if recipe.model.name is not None or not isinstance(kind, str) or kind in KNOWN_TYPES:
        return
    if _looks_ahead(recipe):  # which is an error
        return
    near = close_matches(kind, KNOWN_TYPES)
    report.add(
        "model.architecture.model_type",
        f"{kind} is none of the types whose size is known ({', '.join(KNOWN_TYPES)}): memory, checkpoint size and the "
        "type itself are not checked",
        f"did you mean `{near[0]}`?" if near else None,
    )
