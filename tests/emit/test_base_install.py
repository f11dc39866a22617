"""`pip install nvrx-run` alone, with pydantic, pyyaml and what those need and nothing more: it checks and emits."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LLAMA = ROOT / "recipes" / "llama8b-async-combined.yaml"
_ASK = """
import importlib.util, sys
main = importlib.import_module(sys.argv[1]).main
code = main(sys.argv[2:])
there = [name for name in ("torch", "numpy", "transformers", "structlog", "rich", "psutil", "pytest", "pip")
         if importlib.util.find_spec(name)]
assert not there, there
raise SystemExit(code)
"""


def needed(name: str) -> set[str]:
    """A distribution and everything that it needs, extras aside, as pip would choose here."""
    from packaging.requirements import Requirement

    found, ahead = set[str](), [name]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            wanted = map(Requirement, metadata.requires(each) or ())
            ahead += [item.name for item in wanted if not item.marker or item.marker.evaluate({"extra": ""})]
    return found


def copy_distribution(name: str, site: Path) -> None:
    """The files of an installed distribution."""
    for file in metadata.files(name) or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, site / file)


def packaged_files() -> Iterator[Path]:
    """What a wheel of the product holds: modules, and the data that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text()
    (data,) = re.findall(r"^\[tool\.setuptools\.package-data\]\nrunner = \[(.*)\]$", text, re.M)
    yield from (ROOT / "runner").rglob("*.py")
    for name in re.findall(r'"([^"]+)"', data):
        yield ROOT / "runner" / name


@pytest.fixture(scope="module")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the base install and not even pip."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=60)
    (site,) = (folder / "env" / "lib").glob("python3.*/site-packages")
    base = needed("pydantic") | needed("pyyaml")
    assert base <= {
        "pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "pyyaml",
    }  # fmt: skip
    for name in base:
        copy_distribution(name, site)
    for path in packaged_files():
        target = site / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder / "env" / "bin" / "python"


def ask(
    python: Path, folder: Path, *arguments: str | Path, program: str = "runner.cli"
) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment, isolated from this one."""
    command = [str(python), "-I", "-c", _ASK, program, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=folder, env={}, check=False
    )


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("runner.cli", [ROOT / "recipes" / "quickstart.yaml"]),
        ("runner.cli", [ROOT / "recipes" / "gpt2-async-ft_launcher.yaml"]),
        ("runner.cli", ["--export", ROOT / "recipes" / "quickstart.yaml", "latest"]),
        ("runner.bench.cli", [ROOT / "recipes" / "suites" / "laptop.yaml"]),
        ("runner.train.prepare_data", [ROOT / "recipes" / "quickstart.yaml"]),
    ],
    ids=["run", "run with ft_launcher", "export", "suite", "data"],
)
def test_base_install_says_what_training_needs_before_it_makes_anything(
    program: str, arguments: list[str | Path], base_python: Path, tmp_path: Path
) -> None:
    done = ask(base_python, tmp_path, *arguments, program=program)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "nvrx-" in line.partition(" ")[0])
    assert "torch, nvidia-resiliency-ext, " in line
    assert line.endswith("pip install '.[train]'")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_base_requirements_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (line,) = re.findall(r"^dependencies = \[(.*)\]$", text, re.M)
    assert [re.split("[<>=]", item)[0] for item in re.findall(r'"([^"]+)"', line)] == ["pydantic", "pyyaml"]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--validate", *RECIPES], ": valid"),
        (["--emit-manifest", LLAMA], "# llama8b-async-combined-"),
        (["--emit-data-job", LLAMA], "# llama8b-async-combined-data-"),
        (
            ["--emit-command", LLAMA, "--set", "cluster.nvrx_version=0.4.1", "--set", "cluster.leader=a"],
            "ft_launcher ",
        ),
        (["--emit-sbatch", LLAMA], "#!/bin/bash"),
        (["--emit-schema"], "{"),
        (["--explain", LLAMA], ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_base_install_validates_and_emits(
    arguments: list[str | Path], first: str, base_python: Path, tmp_path: Path
) -> None:
    done = ask(base_python, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("nvrx-run: warning: ") for line in done.stderr.splitlines())
    assert first in done.stdout.splitlines()[0]


def test_base_install_emits_what_a_full_one_does(base_python: Path, tmp_path: Path) -> None:
    """Down to the byte: the manifest does not depend on what happens to be installed where it is made."""
    done = ask(base_python, tmp_path, "--emit-manifest", LLAMA)
    assert done.stdout == golden()


def golden() -> str:
    """The manifest in the repository, less the line that says how it was made."""
    return (ROOT / "manifests" / LLAMA.name).read_text().split("\n", 1)[1]


def test_base_install_refuses_a_bad_recipe_alike(base_python: Path, tmp_path: Path) -> None:
    done = ask(base_python, tmp_path, "--validate", LLAMA, "--set", "cluster.kubernetes.efa=99")
    assert done.returncode == 2
    assert "R722" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pip_installs_no_more_than_the_base(tmp_path: Path) -> None:
    """The wheel that pip builds, from the package index's own copies of the two."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True, timeout=120)
    python = tmp_path / "env" / "bin" / "python"
    build = tmp_path / "source"
    shutil.copytree(ROOT / "runner", build / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, build / name)
    subprocess.run([python, "-m", "pip", "install", "-q", build], check=True, timeout=400)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    names = {line.split("==")[0].lower().replace("_", "-") for line in listed.splitlines()}
    assert names - {"pip", "setuptools"} == {
        "nvrx-run", "pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "pyyaml",
    }  # fmt: skip
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "nvrx-run", "--emit-manifest", LLAMA],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={},
        cwd=tmp_path,
    )
    assert done.stdout == golden()
