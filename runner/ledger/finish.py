"""The mark in a run's folder that the run is done: up to which step, with which settings, and whether it may go on.

A finished run is not trained again, so what its recipe says differently now would be ignored in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.recipe.difference import by_dotted_name
from runner.strictjson import parse
from runner.system.durable import write_durably

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

FINISHED = "finished.json"
# What the outcome of a run does not depend on: where its end is (told otherwise), speed, memory, what is shown.
_NO_MATTER = frozenset(
    {
        "training.steps", "training.micro_batch_size", "training.log_every", "training.optimizer.fused",
        "model.activation_checkpointing", "model.compile", "dataset.workers", "dataset.worker_timeout",
    }
)  # fmt: skip
_NUMERICS = ("compute_dtype", "reduce_dtype")  # of `sharding`; how parameters are laid out is free


@dataclass(frozen=True)
class Finish:
    """What the mark says.

    Attributes:
        steps: the run was trained up to here.
        settings: what its outcome depends on, by dotted names; empty where the mark does not say.
        closed: why the run may not be trained any further; empty where it may.
    """

    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    closed: str = ""


def read_finish(run_folder: Path) -> Finish | None:
    """The mark; None where there is none, or a damaged one: the checkpoints decide then."""
    try:
        content = parse((run_folder / FINISHED).read_bytes())
        settings, closed = content.get("settings", {}), content.get("closed", "")
        if not (isinstance(settings, dict) and isinstance(closed, str)):
            return None
        return Finish(int(content["steps"]), settings, closed)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def mark_finished(recipe: Recipe) -> None:
    """Remember that a run is done.

    Args:
        recipe: resolved; the run's.

    Raises:
        OSError: the mark cannot be written.
    """
    content = {"steps": recipe.training.steps, "settings": settings_of(recipe)}
    write_durably(recipe.run_folder / FINISHED, json.dumps(content))


def close_run(run_folder: Path, reason: str) -> None:
    """Let a finished run be as it is from now on: no command adds to its ledger. Nothing where it has no mark.

    Args:
        reason: for whoever wants to go on, a few words.

    Raises:
        OSError: the mark cannot be written.
    """
    known = read_finish(run_folder)
    if known is not None:
        content = {"steps": known.steps, "settings": dict(known.settings), "closed": reason}
        write_durably(run_folder / FINISHED, json.dumps(content))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """What the outcome of a run depends on, as JSON values by dotted names, defaults included."""
    sections = recipe.model_dump(mode="json", include={"model", "dataset", "training", "sharding"})
    sharding = sections["sharding"]
    sections["sharding"] = {key: sharding[key] for key in _NUMERICS if key in sharding}
    return {name: value for name, value in by_dotted_name(sections) if name not in _NO_MATTER}
