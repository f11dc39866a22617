"""`nvrx-run --emit-*`: what it prints, where it writes, and how it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from runner.cli import main
from runner.errors import ExitCode

RECIPES = Path(__file__).parents[2] / "recipes"
LLAMA, QUICK = str(RECIPES / "llama8b-async-combined.yaml"), str(RECIPES / "quickstart.yaml")


def test_manifest_goes_to_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "job.yaml"
    assert main(["--emit-manifest", LLAMA, "-o", str(target)]) == ExitCode.DONE
    assert capsys.readouterr().out == ""
    assert main(["--emit-manifest", LLAMA]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert target.read_text() == text
    assert list(yaml.safe_load_all(text))[-1]["kind"] == "Job"


def test_override_reaches_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--emit-manifest", LLAMA, "--set", "cluster.instance_type=p4de.24xlarge"]) == ExitCode.DONE
    spec = list(yaml.safe_load_all(capsys.readouterr().out))[-1]["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == 4
    assert spec["nodeSelector"]["node.kubernetes.io/instance-type"] == "p4de.24xlarge"


def test_recipe_without_a_cluster_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--emit-manifest", QUICK]) == ExitCode.BAD_RECIPE
    error = capsys.readouterr().err
    assert error == "nvrx-run: cluster.kubernetes: a manifest needs it: give at least `image` and `storage`\n"


def test_patch_that_breaks_the_job_is_refused_with_the_fields_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    patch = "cluster.kubernetes.patches={Job: {spec: {parallelism: 1, backofLimit: 2}}}"
    assert main(["--emit-manifest", LLAMA, "--set", patch]) == ExitCode.BAD_RECIPE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Job.spec.backofLimit: no such field; did you mean backoffLimit?" in captured.err


def test_command_of_another_node_needs_to_know_the_leader(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--emit-command", LLAMA, "--node-rank", "1"]) == ExitCode.BAD_RECIPE
    assert "cluster.leader" in capsys.readouterr().err
    assert main(["--emit-command", LLAMA, "--node-rank", "1", "--set", "cluster.leader=a"]) == ExitCode.DONE
    argv = shlex.split(capsys.readouterr().out)
    assert Path(argv[0]).name == "ft_launcher"
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--rdzv-endpoint=a:29500"} <= set(argv)
    assert argv[-1] == LLAMA
    with pytest.raises(SystemExit):
        main(["--emit-manifest", LLAMA, "--node-rank", "1"])


def test_slurm_script_and_data_job_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--emit-sbatch", QUICK]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=quickstart\n")
    assert main(["--emit-data-job", LLAMA]) == ExitCode.DONE
    job = list(yaml.safe_load_all(capsys.readouterr().out))[-1]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][0] == "nvrx-data"
