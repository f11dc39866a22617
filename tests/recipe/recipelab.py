"""Helpers of the recipe tests."""

from __future__ import annotations

from pathlib import Path

from runner.recipe.load import LoadedRecipe, check_file
from runner.recipe.problems import Problem

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))

SMALL = """\
name: small
model:
  architecture: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128}
dataset:
  source: embedded
  sequence_length: 64
sharding:
  strategy: fsdp
training:
  steps: 20
  global_batch_size: 8
checkpoint:
  every: 5
recovery:
  layer: inprocess
cluster:
  accelerator: cpu
  processes_per_node: 2
"""  # noqa: E501


def check_text(
    folder: Path, text: str | bytes, *overrides: str, environment: dict[str, str] | None = None
) -> tuple[LoadedRecipe | None, list[Problem]]:
    """Write a recipe and check it."""
    path = folder / "recipe.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return check_file(path, overrides, environment={} if environment is None else environment)


def line_of(text: str, start: str) -> int:
    """Number of the only line that starts with `start`, indentation aside."""
    found = [number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start)]
    assert len(found) == 1, (start, found)
    return found[0]
