"""`nvrx-run --emit-*`: what it prints, where it writes, and how it refuses."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from runner.cli import main
from runner.emit.launcher import launcher_env
from runner.errors import ExitCode
from runner.launch.place import Place
from runner.recipe.load import load_recipe, read_resolved
from runner.recipe.resolve import resolve
from runner.train.worker import arguments
from runner.train.worker import main as worker

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


def test_examples_that_nobody_filled_in_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"IMAGE": "r.example/i:1", "FSX_ID": "fs-11111111", "FSX_DNS": "fs-11111111.fsx.x.amazonaws.com"}
    for name in own:
        monkeypatch.delenv(name, raising=False)
    for action in ("--emit-manifest", "--emit-data-job"):
        assert main([action, LLAMA]) == ExitCode.DONE
        told = capsys.readouterr().err.splitlines()
        starts = [f"nvrx-run: warning: cluster.kubernetes.{key}: " for key in ("storage", "image")]
        assert len(told) == 2 and all(map(str.startswith, told, starts)), told
        assert "FSX_ID" in told[0] and "IMAGE" in told[1]
    monkeypatch.setenv("FSX_ID", own["FSX_ID"])
    assert main(["--emit-manifest", LLAMA]) == ExitCode.DONE
    assert "cluster.kubernetes.storage: " in capsys.readouterr().err  # the address is still the example's
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert main(["--emit-manifest", LLAMA]) == ExitCode.DONE
    assert capsys.readouterr().err == ""


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
    words = shlex.split(capsys.readouterr().out)
    argv = words[next(index for index, word in enumerate(words) if Path(word).name == "ft_launcher") :]
    assert "GROUP_RANK=1" in words and "NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME-^lo,docker,veth}" in words
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--rdzv-endpoint=a:29500"} <= set(argv)
    assert argv[-3:] == [LLAMA, "--set", "cluster.leader=a"]
    with pytest.raises(SystemExit):
        main(["--emit-manifest", LLAMA, "--node-rank", "1"])


def layered(folder: Path) -> Path:
    """A recipe in two layers that takes its name from the environment."""
    base = folder / "the base.yaml"
    base.write_text(f"extends: {QUICK}\ntraining: {{steps: 40}}\noutput: {{folder: 'runs/base'}}\n")
    recipe = folder / "own.yaml"
    recipe.write_text("extends: the base.yaml\nname: ${OWN_NAME}\ncheckpoint: {every: 10}\n")
    return recipe


OVERRIDES = ("training.seed=7", "output={folder: 'runs/${OWN_NAME} $HOME \"x\"'}", "faults.count=0")


def test_workers_of_the_printed_command_train_what_was_asked_for_as_a_run_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN_NAME", "mine")
    path = layered(tmp_path)
    asked = resolve(load_recipe(path, OVERRIDES).recipe, cwd=tmp_path)
    assert (asked.name, asked.training.seed) == ("mine", 7)
    assert str(asked.run_folder) == f'{tmp_path}/runs/mine $HOME "x"'
    sets = [word for text in OVERRIDES for word in ("--set", text)]
    assert main(["--emit-command", "own.yaml", *sets]) == ExitCode.DONE
    line = capsys.readouterr().out
    launcher = tmp_path / "launcher"  # stands where the real one would, and tells what that would see
    launcher.write_text("#!/bin/sh\npwd\nenv -0 > environment\nprintf '%s\\0' \"$@\" > arguments\n")
    launcher.chmod(0o755)
    own = Place(0, None, None).argv(asked, path)
    assert line.count(own[0]) == 1
    shell = {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "3",
    }  # of a clean node, but for a wish of its user
    command = ["sh", "-c", line.replace(own[0], str(launcher))]
    pasted = subprocess.run(
        command, cwd="/", env=shell, capture_output=True, text=True, check=True, timeout=60
    )
    assert pasted.stdout == f"{tmp_path}\n"
    seen = dict(text.split("=", 1) for text in (tmp_path / "environment").read_text().split("\0")[:-1])
    wanted = Place(0, None, None).environment(asked) | {"OMP_NUM_THREADS": "3", "OWN_NAME": "mine"}
    assert {name: seen.get(name) for name in launcher_env(asked)} == {
        name: wanted[name] for name in launcher_env(asked)
    }
    assert (seen["GROUP_RANK"], seen["OWN_NAME"]) == ("0", "mine")
    argv = [own[0], *(tmp_path / "arguments").read_text().split("\0")[:-1]]
    start = argv.index(str(path))
    assert argv[:start] == own[:-1]
    given = arguments(argv[start:])
    assert given is not None
    assert resolve(read_resolved(*given), cwd=tmp_path) == asked


def test_batch_script_passes_overrides_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for text in OVERRIDES[::2] for word in ("--set", text)]
    assert main(["--emit-sbatch", QUICK, *sets, "--set", "name=it-s", "--set", "faults.types=['hang']"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("srun ")]
    words = shlex.split(line.removesuffix(" || code=$?"))
    assert words[words.index("nvrx-run") + 1 :] == [
        QUICK, *sets, "--set", "name=it-s", "--set", "faults.types=['hang']"
    ]  # fmt: skip


def test_worker_started_by_hand_says_how_it_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for words, code in (
        (["--help"], 0), ([], 2), ([QUICK], 2), ([QUICK, "--set"], 2), ([QUICK, "--verbose", "x"], 2),
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["nvrx-worker", *words])
        assert worker() == code
        captured = capsys.readouterr()
        assert (captured.out or captured.err).startswith("usage: nvrx-worker RECIPE [--set KEY=VALUE]...")


def test_slurm_script_and_data_job_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--emit-sbatch", QUICK]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=quickstart\n")
    assert main(["--emit-data-job", LLAMA]) == ExitCode.DONE
    job = list(yaml.safe_load_all(capsys.readouterr().out))[-1]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][0] == "nvrx-data"
