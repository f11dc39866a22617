"""`model`: which causal language model is trained, and in which number format."""

from __future__ import annotations

from typing import Any, Literal

from runner.recipe.fields import Section


class ModelSection(Section):
    """Either `name` (a hub id or a local folder) or `architecture` (the shape, in the recipe itself)."""

    name: str | None = None
    """Hugging Face hub id, or a local folder with `config.json`. Leave out where `architecture` is given."""

    architecture: dict[str, Any] | None = None
    """A transformers configuration: `model_type` and that type's keys, e.g.
    `{model_type: llama, hidden_size: 256, num_hidden_layers: 4, ...}`. Where `vocab_size` is left out, the
    tokenizer's size is used. Together with `name`, its keys override the named configuration."""

    weights: Literal["pretrained", "random"] | None = None
    """`pretrained` loads the weights of `name`; `random` initialises them from the seed. Default: `pretrained`
    where `name` is given alone, `random` otherwise."""

    revision: str | None = None
    """Branch, tag or commit of the hub repository. Default: the hub's main branch. Pin it for long runs."""

    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Format in which parameters and optimiser state are stored. float32 keeps small updates; bfloat16 halves
    memory and checkpoints."""

    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers. `sdpa` needs no extra package."""

    activation_checkpointing: bool = False
    """Recompute each block's activations in backward: less memory for about a third more compute."""

    compile: bool = False
    """`torch.compile` each block. The first step takes minutes longer: raise the first timeouts with it."""

    @property
    def pretrained(self) -> bool:
        """Whether weights are loaded rather than initialised."""
        if self.weights is not None:
            return self.weights == "pretrained"
        return self.architecture is None
