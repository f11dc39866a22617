"""How many parameters a model has, and of which sizes, from a transformers-style configuration.

Nothing is fetched: the configuration comes from the recipe, a local folder's `config.json`, or the table below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

BYTES_VOCABULARY = 257  # the `bytes` tokenizer: one token a byte and the end of text
_LARGEST = 2**40  # of a single dimension: more is a typing error, not a model
_LONGEST_CONFIG = 1 << 20


class Shape(NamedTuple):
    """A causal language model in numbers.

    Attributes:
        model_type: transformers' name of the architecture.
        vocab: tokens; hidden: width; layers: blocks; heads, kv_heads: attention; intermediate: width of the MLP
            (summed over the experts that a token uses).
        block: parameters of one block; ends: of embeddings, final norm and head.
        tensors: all parameters counted as tensors, of transformers 5 (4 keeps each expert's apart).
        positions: longest sequence with learnt positions; None where positions are computed.
        gated: the MLP has a gate beside its up-projection.
        experts: experts a block, 0 where it is dense.
    """

    model_type: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    block: int
    ends: int
    tensors: int
    positions: int | None = None
    gated: bool = True
    experts: int = 0

    @property
    def parameters(self) -> int:
        """All parameters; tied ones count once."""
        return self.layers * self.block + self.ends


class ShapeError(ValueError):
    """A configuration that describes no model; `key` is the key to blame, where there is one."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class _Config:
    """Typed access to a configuration, with the defaults of transformers; `asked` are the keys that were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.asked: list[str] = []

    def size(self, key: str, default: int | None = None) -> int:
        self.asked.append(key)
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ShapeError(f"`{key}` is missing", key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
            raise ShapeError(f"`{key}` must be a positive integer, not {str(value)[:40]}", key)
        return value

    def flag(self, key: str, default: bool) -> bool:
        self.asked.append(key)
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ShapeError(f"`{key}` must be true or false, not {str(value)[:40]}", key)
        return value


class _LlamaLike(NamedTuple):
    """Defaults by which the llama family differs (those of transformers' configuration classes)."""

    vocab: int = 32000
    hidden: int = 4096
    intermediate: int = 11008
    layers: int = 32
    heads: int = 32
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: hidden / heads
    qkv_bias: bool | None = None  # None: by `attention_bias`, which then covers the output projection too
    qk_norm: bool = False
    tied: bool = False


_LLAMA_LIKE = {
    "llama": _LlamaLike(),
    "mistral": _LlamaLike(intermediate=14336, kv_heads=8, qkv_bias=False),
    "mixtral": _LlamaLike(intermediate=14336, kv_heads=8, qkv_bias=False),
    "qwen2": _LlamaLike(vocab=151936, intermediate=22016, kv_heads=32, qkv_bias=True),
    "qwen3": _LlamaLike(vocab=151936, intermediate=22016, kv_heads=32, head_dim=128, qk_norm=True),
    "phi3": _LlamaLike(vocab=32064, hidden=3072, intermediate=8192, qkv_bias=False),
    "gemma": _LlamaLike(
        vocab=256000,
        hidden=3072,
        intermediate=24576,
        layers=28,
        heads=16,
        kv_heads=16,
        head_dim=256,
        tied=True,
    ),
}


def _llama_like(config: _Config, kind: str) -> Shape:
    family = _LLAMA_LIKE[kind]
    hidden = config.size("hidden_size", family.hidden)
    heads = config.size("num_attention_heads", family.heads)
    kv_heads = config.size("num_key_value_heads", family.kv_heads or heads)
    if config.values.get("head_dim") is None and family.head_dim is None and hidden % heads:
        raise ShapeError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}", "hidden_size")
    if heads % kv_heads:
        raise ShapeError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
                         "num_key_value_heads")  # fmt: skip
    head_dim = config.size("head_dim", family.head_dim or hidden // heads)
    inner = config.size("intermediate_size", family.intermediate)
    vocab = config.size("vocab_size", family.vocab)
    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = 2 * hidden * queries + 2 * hidden * keys
    tensors = 6 if kind == "phi3" else 9  # whose q, k and v are one, as are gate and up
    if family.qkv_bias:
        attention += queries + 2 * keys
        tensors += 3
    elif family.qkv_bias is None and config.flag("attention_bias", False):
        attention += queries + 2 * keys + hidden
        tensors += 4
    if family.qk_norm:
        attention += 2 * head_dim
        tensors += 2
    mlp, experts, used = 3 * hidden * inner, 0, inner
    if kind == "mixtral":
        experts = config.size("num_local_experts", 8)
        mlp = experts * mlp + hidden * experts
        used = inner * config.size("num_experts_per_tok", 2)
    elif kind == "llama" and config.flag("mlp_bias", False):
        mlp += 2 * inner + hidden
        tensors += 3
    tied = config.flag("tie_word_embeddings", family.tied)
    ends = vocab * hidden * (1 if tied else 2) + hidden
    layers = config.size("num_hidden_layers", family.layers)
    block, tensors = attention + mlp + 2 * hidden, layers * tensors + (2 if tied else 3)
    return Shape(
        kind, vocab, hidden, layers, heads, kv_heads, head_dim, used, block, ends, tensors, experts=experts
    )


def _gpt2(config: _Config) -> Shape:
    hidden, heads = config.size("n_embd", 768), config.size("n_head", 12)
    if hidden % heads:
        raise ShapeError(f"n_embd {hidden} is no multiple of n_head {heads}", "n_embd")
    inner = config.size("n_inner", 4 * hidden)
    vocab, positions = config.size("vocab_size", 50257), config.size("n_positions", 1024)
    attention = 4 * hidden * hidden + 4 * hidden
    block = attention + 2 * hidden * inner + inner + hidden + 4 * hidden
    ends = (vocab + positions) * hidden + 2 * hidden
    layers = config.size("n_layer", 12)
    tensors = 12 * layers + 4
    if not config.flag("tie_word_embeddings", True):
        ends += vocab * hidden
        tensors += 1
    per_head = hidden // heads
    return Shape(
        "gpt2", vocab, hidden, layers, heads, heads, per_head, inner, block, ends, tensors, positions, False
    )


def _gpt_neox(config: _Config) -> Shape:
    hidden, heads = config.size("hidden_size", 6144), config.size("num_attention_heads", 64)
    if hidden % heads:
        raise ShapeError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}", "hidden_size")
    inner, vocab = config.size("intermediate_size", 24576), config.size("vocab_size", 50432)
    biased, tied = config.flag("attention_bias", True), config.flag("tie_word_embeddings", False)
    attention = 4 * hidden * hidden + (4 * hidden if biased else 0)
    block = attention + 2 * hidden * inner + inner + hidden + 4 * hidden
    ends = vocab * hidden * (1 if tied else 2) + 2 * hidden
    layers = config.size("num_hidden_layers", 44)
    tensors, per_head = layers * (12 if biased else 10) + (3 if tied else 4), hidden // heads
    return Shape(
        "gpt_neox", vocab, hidden, layers, heads, heads, per_head, inner, block, ends, tensors, gated=False
    )


_READERS: dict[str, Callable[[_Config], Shape]] = {"gpt2": _gpt2, "gpt_neox": _gpt_neox}
KNOWN_TYPES = (*_LLAMA_LIKE, *_READERS)
"""transformers' names of the architectures whose shape follows from their keys."""


def shape_of_config(values: Mapping[str, Any]) -> Shape | None:
    """The shape of a transformers configuration; None where its `model_type` is none of the known ones.

    Raises:
        ShapeError: a key is missing, of the wrong type, or does not divide.
    """
    kind = values.get("model_type")
    return _read(_Config(values), kind) if isinstance(kind, str) else None


def _read(config: _Config, kind: str) -> Shape | None:
    if kind in _LLAMA_LIKE:
        return _llama_like(config, kind)
    return _READERS[kind](config) if kind in _READERS else None


def shape_keys(kind: str) -> tuple[str, ...]:
    """The keys that decide the shape of a known `model_type`: those that are read of a configuration that has none."""
    config = _Config({})
    _read(config, kind)
    return ("model_type", *dict.fromkeys(config.asked))


def known_config(name: str) -> dict[str, Any] | None:
    """The configuration of a well-known hub model, as far as it decides the shape."""
    from runner.recipe.known_models import KNOWN_MODELS

    return KNOWN_MODELS.get(name)


def model_shape(recipe: Recipe) -> Shape | None:
    """The shape of a recipe's model; None where only a download could tell.

    Raises:
        ShapeError: the configuration describes no model.
    """
    config = _config(recipe)
    if config is None:
        return None
    if config.get("vocab_size") is None:
        vocabulary = _vocabulary(recipe)
        if vocabulary is not None:
            config = {**config, "vocab_size": vocabulary}
    return shape_of_config(config)


def _config(recipe: Recipe) -> dict[str, Any] | None:
    model = recipe.model
    own = dict(model.architecture or {})
    if model.name is None:
        return own
    file = Path(model.name).expanduser() / "config.json"
    if file.is_file():
        import json

        if file.stat().st_size > _LONGEST_CONFIG:
            raise ShapeError(f"{file} is larger than a configuration is")
        try:
            base = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ShapeError(f"{file} cannot be read: {error}") from None
        if not isinstance(base, dict):
            raise ShapeError(f"{file} holds no JSON object")
    else:
        known = known_config(model.name)
        if known is None:
            return None
        base = known
    meant, is_ = own.get("model_type"), base.get("model_type")
    if meant is not None and is_ is not None and meant != is_:
        raise ShapeError(
            f"{model.name} is a {is_} model, whose keys a {meant} model does not have", "model_type"
        )
    return {**base, **own}


def _vocabulary(recipe: Recipe) -> int | None:
    """Size of the tokenizer, where it is known without loading it."""
    dataset = recipe.dataset
    name = dataset.tokenizer or ("bytes" if dataset.source == "embedded" else recipe.model.name)
    if name == "bytes":
        return BYTES_VOCABULARY
    known = known_config(name) if name else None
    return known["vocab_size"] if known else None
