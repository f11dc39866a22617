"""What the ledger says about a model, and the MFU that follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from runner.ledger.flops import flops_per_token, peak_flops
from runner.train.facts import model_facts


def facts_of(tied: bool) -> Any:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 8)
            self.layer = nn.Linear(8, 8, bias=False)
            self.head = nn.Linear(8, 100, bias=False)
            if tied:
                self.head.weight = self.embed.weight

    config = SimpleNamespace(num_hidden_layers=1, hidden_size=8, tie_word_embeddings=tied)
    recipe: Any = SimpleNamespace(
        dataset=SimpleNamespace(sequence_length=16), training=SimpleNamespace(precision="bf16")
    )
    return model_facts(Tiny(), config, recipe, torch.device("cpu"))


def test_an_embedding_that_is_only_looked_up_costs_no_flops() -> None:
    facts = facts_of(tied=False)
    assert facts.parameters == 800 + 64 + 800
    assert facts.flops_per_token == 6 * (64 + 800) + 12 * 1 * 8 * 16
    assert (facts.device, facts.peak_flops) == ("cpu", None)


def test_a_tied_embedding_is_multiplied_with_once() -> None:
    facts = facts_of(tied=True)
    assert facts.parameters == 864 and facts.flops_per_token == 6 * 864 + 12 * 8 * 16


def test_an_8b_llama_takes_about_fifty_gigaflops_a_token() -> None:
    multiplied = 8_030_261_248 - 128_256 * 4096
    assert flops_per_token(multiplied, 32, 4096, 8192) == pytest.approx(5.79e10, rel=0.01)


def test_peaks_are_known_by_the_drivers_names() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA H200", "fp32") is None and peak_flops("a new one", "bf16") is None
