"""What a recipe may not say of its cluster: each is found by `--validate`, with its field's path and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes_for_tests import KUBERNETES, merged, tiny_data

from runner.emit.data_job import data_job_objects
from runner.emit.manifest import manifest_objects
from runner.recipe.image import image_problem
from runner.recipe.load import check_file
from runner.recipe.problems import Problem

K = "cluster.kubernetes"
RECIPES = Path(__file__).parents[2] / "recipes"


def problems(tmp_path: Path, change: dict[str, Any]) -> list[Problem]:
    """Errors of the cluster recipe with a change laid over it."""
    cluster = {
        "nodes": 2, "instance_type": "p5.48xlarge", "accelerator": "auto", "processes_per_node": 8,
        "kubernetes": KUBERNETES,
    }  # fmt: skip
    base = tiny_data(training={"global_batch_size": 96}, cluster=cluster)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(base, change), sort_keys=False))
    return [item for item in check_file(path, environment={})[1] if item.severity == "error"]


def kubernetes(**change: Any) -> dict[str, Any]:
    return {"cluster": {"kubernetes": change}}


def mounted(*paths: str) -> dict[str, Any]:
    return kubernetes(volume_mounts=[{"name": f"x{i}", "mountPath": path} for i, path in enumerate(paths)])


LONG = (f"{K}.namespace={'n' * 63}", f"{K}.labels={{{'e.' + 'x' * 250 + '/' + 'k' * 63}: {'v' * 63}}}")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_longest_names_that_validate_can_be_emitted(path: Path) -> None:
    named = f"name=a{'-' * 49}-b"
    loaded, problems = check_file(path, [named], {})
    assert loaded is not None, problems
    if loaded.recipe.cluster.kubernetes is not None:
        loaded, problems = check_file(path, [named, *LONG], {})
        assert loaded is not None, problems
        names = [item["metadata"]["name"] for item in manifest_objects(loaded.recipe)]
        assert max(map(len, names)) <= 253
        assert data_job_objects(loaded.recipe)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "GPU layer on a CPU node": (
        {"cluster": {"instance_type": "c9.large", "instance": {"gpus": 0, "vcpus": 8, "memory": "64GiB"}}},
        "R721", "cluster.accelerator",
    ),
    "more ranks than GPUs": ({"cluster": {"processes_per_node": 12}}, "R721", "cluster.processes_per_node"),
    "more EFA than the node has": (kubernetes(efa=33), "R722", f"{K}.efa"),
    "more CPU than the node has": (kubernetes(resources={"cpu": "193"}), "R722", f"{K}.resources.cpu"),
    "more memory than the node has": (kubernetes(resources={"memory": "2Ti"}), "R722", f"{K}.resources.memory"),
    "more local storage than the node has": (
        kubernetes(local_storage={"size": "40TB"}), "R722", f"{K}.local_storage.size",
    ),
    "variable of the launcher": (kubernetes(env={"PET_NNODES": "1"}), "R723", f"{K}.env.PET_NNODES"),
    "variable that breaks EFA": (kubernetes(env={"RDMAV_FORK_SAFE": "1"}), "R723", f"{K}.env.RDMAV_FORK_SAFE"),
    "variable twice": (
        kubernetes(env={"X": "1"}, secret_env={"X": {"secret": "a", "key": "b"}}), "R723", f"{K}.env.X",
    ),
    "token by name": (kubernetes(env={"HF_TOKEN": "abc"}), "R724", f"{K}.env.HF_TOKEN"),
    "token by value": (kubernetes(env={"X": "hf_" + "a" * 34}), "R724", f"{K}.env.X"),
    "key by value": (kubernetes(env={"X": "AKIA" + "A" * 16}), "R724", f"{K}.env.X"),
    "password in an address": (
        kubernetes(env={"PROXY": "http://me:secret@proxy.example:3128"}), "R724", f"{K}.env.PROXY",
    ),
    "label of Kubernetes": (kubernetes(labels={"kubernetes.io/x": "z1"}), "R725", f"{K}.labels.kubernetes.io/x"),
    "label of the product": (kubernetes(labels={"nvrx-run/run": "z1"}), "R725", f"{K}.labels.nvrx-run/run"),
    "toleration Exists with a value": (
        kubernetes(tolerations=[{"key": "a", "value": "b"}]), "R726", f"{K}.tolerations[0].value",
    ),
    "toleration Equal without a key": (
        kubernetes(tolerations=[{"operator": "Equal", "value": "b"}]), "R726", f"{K}.tolerations[0]",
    ),
    "IPC_LOCK under baseline": (kubernetes(ipc_lock=True), "R727", f"{K}.ipc_lock"),
    "run folder in the pod": ({"output": {"folder": "/data/run"}}, "R728", "output.folder"),
    "checkpoints beside the storage": ({"checkpoint": {"folder": "/shared2/x"}}, "R728", "checkpoint.folder"),
    "checkpoints above the storage": ({"checkpoint": {"folder": "../x"}}, "R728", "checkpoint.folder"),
    "storage over /tmp": (
        kubernetes(storage={**KUBERNETES["storage"], "mount_path": "/tmp"}), "R729", f"{K}.storage.mount_path",
    ),
    "two mounts at one place": (
        kubernetes(volume_mounts=[{"name": "x", "mountPath": "/shared"}]), "R729", f"{K}.volume_mounts[0]",
    ),
    "checkpoints on a volume inside the storage": (
        {"checkpoint": {"folder": "fast/ckpt"}, **mounted("/shared/fast")}, "R728", "checkpoint.folder",
    ),
    "the run's folder on a volume inside the storage": (mounted("/shared/runs/"), "R728", "output.folder"),
    "two mounts at one place, written in two ways": (
        mounted("/data/", "/data"), "R729", f"{K}.volume_mounts[1]",
    ),
    "a mount in the recipe's folder": (
        mounted("/etc/nvrx/recipe.yaml"), "R729", f"{K}.volume_mounts[0]",
    ),
    "a mount in shared memory": (mounted("/dev/shm/x"), "R729", f"{K}.volume_mounts[0]"),
    "a mount in the kernel's interface": (mounted("/proc/self/x"), "R729", f"{K}.volume_mounts[0]"),
    "a mount in a ConfigMap": (
        kubernetes(
            volumes=[{"name": "x", "configMap": {"name": "x"}}, {"name": "inner", "emptyDir": {}}],
            volume_mounts=[{"name": "x", "mountPath": "/conf"}, {"name": "inner", "mountPath": "/conf/y"}],
        ),
        "R729", f"{K}.volume_mounts[1]",
    ),
    "a mount in the run's folder": (mounted("/shared/runs/tiny/logs"), "R729", f"{K}.volume_mounts[0]"),
    "recipe replaced by a patch": (
        kubernetes(patches={"ConfigMap": {"data": {"recipe.yaml": "name: other"}}}),
        "R733", f"{K}.patches.ConfigMap.data.recipe.yaml",
    ),
    "recipe in bytes": (
        kubernetes(patches={"ConfigMap": {"binaryData": {"recipe.yaml": "bmFtZTogYQ=="}}}),
        "R733", f"{K}.patches.ConfigMap.binaryData.recipe.yaml",
    ),
    "recipe taken away": (kubernetes(patches={"ConfigMap": {"data": None}}), "R733", f"{K}.patches.ConfigMap.data"),
    "ConfigMap replaced": (
        kubernetes(patches={"ConfigMap": {"$patch": "replace", "kind": "ConfigMap"}}),
        "R733", f"{K}.patches.ConfigMap.$patch",
    ),
    "metrics on the rendezvous port": (
        {"output": {"live": {"prometheus_port": 29500}}}, "R731", "output.live.prometheus_port",
    ),
    "metrics on a port of root's": (
        {"output": {"live": {"prometheus_port": 80}}}, "R731", "output.live.prometheus_port",
    ),
    "grace below a save": (kubernetes(grace_period="5m"), "R730", f"{K}.grace_period"),
    **{
        f"storage over {folder}": (
            kubernetes(storage={**KUBERNETES["storage"], "mount_path": folder}), "R729", f"{K}.storage.mount_path",
        )
        for folder in (
            "/usr", "/bin", "/etc", "/proc", "/sys/x", "/dev", "/usr/local/lib", "/lib/../usr", "//opt", "/etc/hosts",
        )
    },
    **{
        f"image {image[:40]}": (kubernetes(image=image), "R732", f"{K}.image")
        for image in (
            "Nvrx-run:1", "registry.example/Team/nvrx-run", "a///b",
            "/nvrx-run", "nvrx-run/", "nvrx-run:", "nvrx-run:-1",
            "nvrx-run:" + "x" * 129, "registry.example:70000/nvrx-run", "registry.example:port/nvrx-run",
            "http://r.example/x",
            "-r.example/x", "a..b", "a-/b", "a___b", "nvrx-run@", "nvrx-run@sha256:abc", "nvrx-run@md5:" + "0" * 32,
            "nvrx-run@sha256:" + "A" * 64, "nvrx-run:1:2", "é:1", "0" * 64, "r.example/" + "x" * 250,
        )
    },
}  # fmt: skip
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "namespace": (kubernetes(namespace="Team_A"), f"{K}.namespace"),
    "zone": (kubernetes(zone="us east"), f"{K}.zone"),
    "label value": (kubernetes(labels={"a": "b c"}), f"{K}.labels.a"),
    "toleration effect": (kubernetes(tolerations=[{"key": "a", "effect": "Never"}]), f"{K}.tolerations[0].effect"),
    "toleration value that is blank": (
        kubernetes(tolerations=[{"key": "a", "value": " "}]), f"{K}.tolerations[0].value",
    ),
    "file system": (
        kubernetes(storage={"source": "fsx", "file_system_id": "x", "dns_name": "a.b", "mount_name": "m"}),
        f"{K}.storage.file_system_id",
    ),
    "memory": (kubernetes(resources={"memory": "10GB"}), f"{K}.resources.memory"),
    "no storage": (kubernetes(storage=None), f"{K}.storage"),
    "no image": (kubernetes(image=""), f"{K}.image"),
    "image with a space": (kubernetes(image="a b"), f"{K}.image"),
    "env value with a NUL": (kubernetes(env={"A": "b\0"}), f"{K}.env.A"),
    "env value with an escape": (kubernetes(env={"A": "\x1b[0m"}), f"{K}.env.A"),
    "annotation with a carriage return": (kubernetes(annotations={"a": "b\r"}), f"{K}.annotations.a"),
    "control character in a patch": (
        kubernetes(patches={"Job": {"metadata": {"annotations": {"a": "\x7f"}}}}),
        f"{K}.patches.Job.metadata.annotations.a",
    ),
    "control character outside the cluster": ({"output": {"folder": "a\0b"}}, "output.folder"),
    "more pods than a Job takes": ({"cluster": {"nodes": 100_001}}, "cluster.nodes"),
    "more life than a field holds": (kubernetes(ttl_after_finished=2**31), f"{K}.ttl_after_finished"),
    "pod_restarts above 32 bits": (kubernetes(pod_restarts=2**31), f"{K}.pod_restarts"),
    "user above 32 bits": (kubernetes(run_as_user=2**31), f"{K}.run_as_user"),
    "group above 32 bits": (kubernetes(run_as_group=2**31), f"{K}.run_as_group"),
    "line break in a mount path": (
        kubernetes(storage={**KUBERNETES["storage"], "mount_path": "/a\nb"}), f"{K}.storage.mount_path",
    ),
    "port": ({"cluster": {"rendezvous_port": 80}}, "cluster.rendezvous_port"),
    "NVRx version": ({"cluster": {"nvrx_version": "0.9"}}, "cluster.nvrx_version"),
    "user root": (kubernetes(run_as_user=0), f"{K}.run_as_user"),
    "env value that is a list": (kubernetes(env={"A": [1]}), f"{K}.env.A"),
    "patch of another kind": (kubernetes(patches={"Deployment": {}}), f"{K}.patches.Deployment"),
    "unknown key": (kubernetes(imagee="x"), f"{K}.imagee"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_contradiction_is_refused_with_rule_path_and_line(case: str, tmp_path: Path) -> None:
    change, code, path = REFUSED[case]
    found = problems(tmp_path, change)
    assert (code, path) in [(item.code, item.path) for item in found], [item.line() for item in found]
    (first,) = (item for item in found if (item.code, item.path) == (code, path))
    assert first.at.line > 0


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_setting_is_refused_with_its_path(case: str, tmp_path: Path) -> None:
    change, path = MALFORMED[case]
    found = problems(tmp_path, change)
    assert path in [item.path for item in found], [item.line() for item in found]


def test_the_same_recipe_without_a_change_is_valid(tmp_path: Path) -> None:
    assert problems(tmp_path, {}) == []


def test_images_as_registries_name_them_are_taken() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    for image in (
        "nvrx-run", "nvrx-run:0.1.0", "team/nvrx-run:v1_2.3-rc", "localhost/x", "localhost:5000/x:1",
        "registry.example:443/a/b__c/d--e",
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-ec2",
        f"nvrx-run@{digest}", f"public.ecr.aws/x/y:1@{digest}", "[2001:db8::1]:5000/x", "REGISTRY/x", "10.0.0.1:5000/x",
    ):  # fmt: skip
        assert image_problem(image) is None, image


def test_mounts_that_do_no_harm_are_taken(tmp_path: Path) -> None:
    change = kubernetes(
        local_storage={"size": "100GiB", "mount_path": "/shared/scratch"},
        volumes=[{"name": "x", "emptyDir": {}}, {"name": "certificates", "configMap": {"name": "c"}}],
        volume_mounts=[
            {"name": "x", "mountPath": "/tmp/x"}, {"name": "x", "mountPath": "/dev/hugepages"},
            {"name": "certificates", "mountPath": "/etc/ssl/certs/own.pem", "subPath": "own.pem"},
        ],
    )  # fmt: skip
    assert problems(tmp_path, change) == []


def test_harmless_values_are_no_credentials(tmp_path: Path) -> None:
    environment = {
        "TOKENIZERS_PARALLELISM": False,
        "HF_TOKEN_PATH": "/shared/token",
        "MAX_TOKENS": 5,
        "AUTHOR": "me",
        "LINES": "one\n\ttwo\u00a0\u2028",
    }
    assert problems(tmp_path, kubernetes(env=environment)) == []
