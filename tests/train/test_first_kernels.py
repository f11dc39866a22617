"""The tiny step that loads a model's kernels early: what it runs through, and that training does not see it."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner.recipe.load import load_recipe
from runner.train import first_kernels
from runner.train.first_kernels import head_size, load_kernels, tiny_step

CPU = torch.device("cpu")
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml"


class Called(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("stored", "computed"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]
)
def test_it_calls_what_a_step_of_a_transformer_calls(stored: torch.dtype, computed: torch.dtype) -> None:
    with Called() as called:
        tiny_step(CPU, stored, computed, 64)
    assert {"embedding", "silu", "rsqrt", "nll_loss_forward", "_foreach_norm"} <= called.names
    assert {"mm", "addmm", "bmm", "matmul"} & called.names
    assert any("scaled_dot_product" in name and "backward" in name for name in called.names)
    assert any("adam" in name or name == "addcdiv_" or name == "_foreach_addcdiv_" for name in called.names)


def test_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    tiny_step(CPU, torch.float32, torch.float32, 64)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_heads_size_is_what_the_configuration_says_or_what_follows_from_it() -> None:
    assert head_size(types.SimpleNamespace(head_dim=96, hidden_size=512, num_attention_heads=8)) == 96
    assert head_size(types.SimpleNamespace(head_dim=None, hidden_size=512, num_attention_heads=8)) == 64
    assert head_size(types.SimpleNamespace()) == 128


def test_a_cpu_loads_nothing_early() -> None:
    assert load_kernels(load_recipe(RECIPE).recipe, types.SimpleNamespace(), CPU) is None


def test_a_failure_is_left_to_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    seen: list[object] = []
    monkeypatch.setattr("threading.excepthook", seen.append)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(first_kernels, "tiny_step", fail)
    loader = load_kernels(load_recipe(RECIPE).recipe, types.SimpleNamespace(), torch.device("cuda", 0))
    assert loader is not None
    loader.join(10)
    assert not loader.is_alive()
    assert seen == []
