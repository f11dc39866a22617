"""Shapes of well-known hub models, so that a recipe that names one can be checked without the network."""

from __future__ import annotations

from typing import Any


def _llama(
    kind: str, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, **more,
    }  # fmt: skip


def _neox(vocab: int, hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads,
    }  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
    }


_TIED = {"tie_word_embeddings": True}
_SHAPES: dict[tuple[str, ...], dict[str, Any]] = {
    ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3-8B",
     "meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B",
     "NousResearch/Meta-Llama-3.1-8B"): _llama("llama", 128256, 4096, 14336, 32, 32, 8),
    ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3-70B",
     "meta-llama/Llama-3.3-70B-Instruct"): _llama("llama", 128256, 8192, 28672, 80, 64, 8),
    ("meta-llama/Llama-3.1-405B",): _llama("llama", 128256, 16384, 53248, 126, 128, 8),
    ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"): _llama(
        "llama", 128256, 2048, 8192, 16, 32, 8, head_dim=64, **_TIED),
    ("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"): _llama(
        "llama", 128256, 3072, 8192, 28, 24, 8, head_dim=128, **_TIED),
    ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"): _llama("llama", 32000, 4096, 11008, 32, 32, 32),
    ("meta-llama/Llama-2-13b-hf",): _llama("llama", 32000, 5120, 13824, 40, 40, 40),
    ("meta-llama/Llama-2-70b-hf",): _llama("llama", 32000, 8192, 28672, 80, 64, 8),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama/TinyLlama_v1.1"): _llama("llama", 32000, 2048, 5632, 22, 32, 4),
    ("HuggingFaceTB/SmolLM2-135M",): _llama("llama", 49152, 576, 1536, 30, 9, 3, **_TIED),
    ("HuggingFaceTB/SmolLM2-360M",): _llama("llama", 49152, 960, 2560, 32, 15, 5, **_TIED),
    ("HuggingFaceTB/SmolLM2-1.7B",): _llama("llama", 49152, 2048, 8192, 24, 32, 32, **_TIED),
    ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"): _llama(
        "mistral", 32000, 4096, 14336, 32, 32, 8),
    ("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"): _llama(
        "mistral", 32768, 4096, 14336, 32, 32, 8),
    ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"): _llama(
        "mixtral", 32000, 4096, 14336, 32, 32, 8, num_local_experts=8, num_experts_per_tok=2),
    ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"): _llama("qwen2", 151936, 896, 4864, 24, 14, 2, **_TIED),
    ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct"): _llama("qwen2", 151936, 1536, 8960, 28, 12, 2, **_TIED),
    ("Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct"): _llama("qwen2", 151936, 2048, 11008, 36, 16, 2, **_TIED),
    ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"): _llama("qwen2", 152064, 3584, 18944, 28, 28, 4),
    ("Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-14B-Instruct"): _llama("qwen2", 152064, 5120, 13824, 48, 40, 8),
    ("Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-32B-Instruct"): _llama("qwen2", 152064, 5120, 27648, 64, 40, 8),
    ("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"): _llama("qwen2", 152064, 8192, 29568, 80, 64, 8),
    ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-Base"): _llama("qwen3", 151936, 1024, 3072, 28, 16, 8, head_dim=128, **_TIED),
    ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B-Base"): _llama("qwen3", 151936, 2048, 6144, 28, 16, 8, head_dim=128, **_TIED),
    ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Base"): _llama("qwen3", 151936, 2560, 9728, 36, 32, 8, head_dim=128, **_TIED),
    ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"): _llama("qwen3", 151936, 4096, 12288, 36, 32, 8, head_dim=128),
    ("EleutherAI/pythia-70m",): _neox(50304, 512, 6, 8),
    ("EleutherAI/pythia-160m",): _neox(50304, 768, 12, 12),
    ("EleutherAI/pythia-410m",): _neox(50304, 1024, 24, 16),
    ("EleutherAI/pythia-1b",): _neox(50304, 2048, 16, 8),
    ("EleutherAI/pythia-1.4b",): _neox(50304, 2048, 24, 16),
    ("EleutherAI/pythia-2.8b",): _neox(50304, 2560, 32, 32),
    ("EleutherAI/pythia-6.9b",): _neox(50432, 4096, 32, 32),
    ("EleutherAI/pythia-12b",): _neox(50688, 5120, 36, 40),
    ("openai-community/gpt2", "gpt2"): _gpt2(768, 12, 12),
    ("openai-community/gpt2-medium", "gpt2-medium"): _gpt2(1024, 24, 16),
    ("openai-community/gpt2-large", "gpt2-large"): _gpt2(1280, 36, 20),
    ("openai-community/gpt2-xl", "gpt2-xl"): _gpt2(1600, 48, 25),
}  # fmt: skip

KNOWN_MODELS: dict[str, dict[str, Any]] = {name: shape for names, shape in _SHAPES.items() for name in names}
"""Configuration by hub id: the keys that decide the shape, as transformers names them."""

ENCODERS = frozenset(
    {
        "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
        "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta",
        "xlm-roberta-xl", "xmod",
    }
)  # fmt: skip
"""Types of transformers that look at all tokens, later ones too, unless their configuration says `is_decoder`."""
LOOKS_AHEAD = "{} is an encoder, and sees the tokens that it is to predict unless is_decoder is true"
