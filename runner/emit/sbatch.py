"""A Slurm batch script that runs a recipe: one task a node, each running `nvrx-run`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner import __version__
from runner.emit.launcher import override_arguments
from runner.emit.names import JOB, LEADER
from runner.emit.policy import longest_stop
from runner.errors import ExitCode
from runner.recipe.derived import node_shape, processes_per_node

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_NOTICE_MARGIN = 60  # seconds between the end of the longest stop and the end of the allocation


def sbatch_text(
    recipe: Recipe,
    *,
    recipe_path: Path,
    folder: Path,
    overrides: Sequence[str] = (),
    filled_in: Mapping[str, str] | None = None,
) -> str:
    """The script.

    `--kill-on-bad-exit=0` keeps the other nodes' launchers alive when one ends, so that they can take a replaced node
    back in. NVRx's own wait for monitor processes at the end of a task is not needed: `nvrx-run` ends after everything
    below it has ended.

    Args:
        recipe: the run.
        recipe_path: file that every node sees.
        folder: where relative paths of the recipe start, on every node.
        overrides: `section.key=value` texts that make `recipe` of that file.
        filled_in: variables of the environment that the recipe was made with.
    """
    cluster = recipe.cluster
    shape = node_shape(recipe)
    ranks = processes_per_node(recipe)
    gpus = 0 if cluster.accelerator == "cpu" else (ranks or (shape.gpus if shape else 0))
    command = shlex.join(["nvrx-run", str(recipe_path), *override_arguments(overrides)])
    notice = math.ceil(longest_stop(recipe).total_seconds()) + _NOTICE_MARGIN
    options = {
        "job-name": recipe.name,
        "nodes": str(cluster.nodes),
        "ntasks-per-node": "1",
        "exclusive": None,
        "mem": "0",  # all of it, which `exclusive` does not ask for
        **({"gpus-per-node": str(gpus)} if gpus else {}),
        "signal": f"TERM@{notice}",
        "requeue": None,
        "open-mode": "append",
        "output": f"{recipe.name}-%j.log",
    }
    lines = [
        f"#SBATCH --{name}" + (f"={value}" if value is not None else "") for name, value in options.items()
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"# Made by nvrx-run {__version__} --emit-sbatch; partition, account and time are yours to add.",
            "set -euo pipefail",
            'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            f"{LEADER}=${{nodes%%$'\\n'*}}",
            f"{JOB}=$SLURM_JOB_ID",
            f"export {LEADER} {JOB}",
            *(f"export {name}={shlex.quote(value)}" for name, value in (filled_in or {}).items()),
            f"cd {shlex.quote(str(folder))}",
            "code=0",
            f"srun --kill-on-bad-exit=0 --wait=0 {command} || code=$?",
            "# Asked to stop before the end of the allocation, and saved: the run goes on in the next one.",
            f'if [ "$code" = {int(ExitCode.PREEMPTED)} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
            'exit "$code"',
            "",
        ]
    )
