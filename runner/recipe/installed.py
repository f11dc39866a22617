"""What this machine has against what the recipe asks of it; checked where a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import InputError
from runner.recipe.checks.versions import nccl_aborts_badly
from runner.recipe.derived import node_shape, processes_per_node
from runner.recipe.layer_settings import inprocess
from runner.recipe.load import check_file

if TYPE_CHECKING:
    from runner.recipe.load import LoadedRecipe
    from runner.recipe.problems import Problem
    from runner.recipe.recipe import Recipe

_RANKS = "cluster.processes_per_node"
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


_TRAINING = {  # distribution -> module: what every run imports, whatever its recipe
    "torch": "torch",
    "nvidia-resiliency-ext": "nvidia_resiliency_ext",
    "transformers": "transformers",
    "numpy": "numpy",
    "structlog": "structlog",
    "xxhash": "xxhash",
}


def require_training() -> None:
    """Refuse what needs the packages of `[train]` where they are not installed, before anything is made for it.

    Raises:
        InputError: which are missing, and what installs them.
    """
    missing = [name for name, module in _TRAINING.items() if find_spec(module) is None]
    if missing:
        raise InputError(
            f"not installed, and nothing trains without: {', '.join(missing)}; "
            "in the folder of the source, pip install '.[train]'"
        )


def installed_nccl() -> str | None:
    """Version of the NCCL that pip installed for torch; None where there is none or torch brings its own."""
    for name in _NCCL_PACKAGES:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def installed_problem(recipe: Recipe, nccl: str | None, *, has_gpu: bool | None = None) -> str | None:
    """Why this machine cannot run the recipe as asked, in a sentence; None where it can.

    Args:
        recipe: the run.
        nccl: NCCL's version, as `installed_nccl` finds it.
        has_gpu: whether a GPU is there. Default: whether the driver's device file is.
    """
    gpu = Path("/dev/nvidiactl").exists() if has_gpu is None else has_gpu
    accelerator, shape = recipe.cluster.accelerator, node_shape(recipe)
    on_gpus = accelerator == "cuda" or (
        accelerator == "auto" and (gpu or (shape is not None and shape.gpus > 0))
    )
    if nccl is None or not on_gpus or not inprocess(recipe) or not nccl_aborts_badly(nccl):
        return None
    return (
        f"NCCL {nccl} is installed, and recovery.layer {recipe.recovery.layer} aborts communicators at every "
        "restart, which NCCL 2.28.3 to 2.28.8 do not survive; install 2.28.9 or later, or use "
        "`recovery.layer: ft_launcher` (R802)"
    )


def rank_problems(loaded: LoadedRecipe, overrides: Sequence[str], ranks: int) -> list[Problem]:
    """Errors that show once the ranks of a node are known, where the recipe leaves them to the machine.

    Args:
        loaded: the recipe, in which no error showed before.
        overrides: `section.key=value` texts that made it.
        ranks: how many this machine will have.
    """
    if processes_per_node(loaded.recipe) is not None:
        return []
    _, problems = check_file(loaded.path, [*overrides, f"{_RANKS}={ranks}"])
    return [
        # Nobody has written that override.
        problem._replace(involved=tuple(item for item in problem.involved if item[0] != _RANKS))
        for problem in problems
        if problem.severity == "error"
    ]
