"""The batch script, run by a real shell with stand-ins for srun and scontrol."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from recipes_for_tests import on_cluster, tiny

from runner.emit.sbatch import sbatch_text

_SRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$OUT/arguments"
pwd > "$OUT/folder"
env | grep -e ^NVRX_RUN_ -e ^OWN_ | sort > "$OUT/environment"
exit "$SRUN_CODE"
"""
_SCONTROL = """#!/bin/bash
if [ "$1" = requeue ]; then echo "$2" > "$OUT/requeued"; else printf 'node-a\\nnode-b\\n'; fi
"""


def submit(tmp_path: Path, text: str, code: int) -> int:
    """Run the script as Slurm's batch step would."""
    for name, script in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(text)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path), "SRUN_CODE": str(code),
        "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node-[a-b]",
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(tmp_path / "job.sh")], env=environment, timeout=30, check=False
    ).returncode


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (14, True)])
def test_script_starts_one_task_a_node_and_requeues_a_preempted_run(
    code: int, requeued: bool, tmp_path: Path
) -> None:
    (tmp_path / "where it's").mkdir()
    text = sbatch_text(
        tiny(cluster={"nodes": 2}), recipe_path=Path("/shared/my recipe.yaml"), folder=tmp_path / "where it's",
        filled_in={"OWN_NAME": "a $b"},
    )  # fmt: skip
    assert submit(tmp_path, text, code) == code
    assert (tmp_path / "arguments").read_text().splitlines() == [
        "--kill-on-bad-exit=0", "--wait=0", "nvrx-run", "/shared/my recipe.yaml",
    ]  # fmt: skip
    assert (tmp_path / "environment").read_text().splitlines() == [
        "NVRX_RUN_JOB=42", "NVRX_RUN_LEADER=node-a", "OWN_NAME=a $b",
    ]  # fmt: skip
    assert (tmp_path / "folder").read_text() == f"{tmp_path}/where it's\n"
    assert (tmp_path / "requeued").exists() == requeued


def test_allocation_follows_the_recipe() -> None:
    text = sbatch_text(on_cluster("p5.48xlarge", nodes=4), recipe_path=Path("r.yaml"), folder=Path("/"))
    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {
        "nodes=4",
        "ntasks-per-node=1",
        "gpus-per-node=8",
        "signal=TERM@360",
        "exclusive",
        "mem=0",
    } <= set(options)
    slow = {"ft_launcher": {"term_timeout": "10m"}, "layer": "ft_launcher"}
    assert "signal=TERM@660" in sbatch_text(tiny(recovery=slow), recipe_path=Path("r.yaml"), folder=Path("/"))
    assert "gpus-per-node" not in sbatch_text(tiny(), recipe_path=Path("r.yaml"), folder=Path("/"))
