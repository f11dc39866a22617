"""What is installed on this machine against what the recipe asks of it; checked where a run starts."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from runner.recipe.checks.versions import nccl_aborts_badly
from runner.recipe.derived import node_shape
from runner.recipe.layer_settings import inprocess

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


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
