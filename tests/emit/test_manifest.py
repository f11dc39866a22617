"""What a recipe's manifest says, and that every bundled Kubernetes schema takes it."""

from __future__ import annotations

import copy
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jsonschema
import kubernetes_validate
import pytest
import yaml
from recipes_for_tests import LAYERS, merged, on_cluster
from strict_schemas import schema_versions, strict

from runner.emit.data_job import emit_data_job
from runner.emit.manifest import emit_manifest, manifest_objects
from runner.emit.names import make_names
from runner.errors import ExitCode
from runner.recipe.instances import INSTANCES
from runner.recipe.load import check_file, load_recipe
from runner.recipe.recipe import Recipe

FSX = {
    "source": "fsx",
    "file_system_id": "fs-0123456789abcdef0",
    "dns_name": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
    "mount_name": "abcdefgh",
}
EVERYTHING: dict[str, Any] = {
    "image_pull_secrets": ["registry-login"],
    "namespace": "nvrx-training",
    "create_namespace": True,
    "local_storage": {"size": "500GiB"},
    "zone": "us-east-1a",
    "node_group": "gpus",
    "node_selector": {"team": "nlp"},
    "tolerations": [{"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"}],
    "topology": {"required": True},
    "priority_class": "high",
    "kueue_queue": "gpus",
    "env": {"N": 1, "F": True, "RATE": 0.5, "MODE": "1e3"},
    "secret_env": {"HF_TOKEN": {"secret": "hf-token", "key": "token"}},
    "labels": {"team": "nlp"},
    "annotations": {"example.com/owner": "nlp"},
    "service_account_annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/run"},
    "volumes": [{"name": "extra", "configMap": {"name": "extra"}}],
    "volume_mounts": [{"name": "extra", "mountPath": "/extra"}],
    "active_deadline": "20h",
}


def by_kind(recipe: Recipe) -> dict[str, Any]:
    return {item["kind"]: item for item in manifest_objects(recipe)}


def pod(recipe: Recipe) -> dict[str, Any]:
    return by_kind(recipe)["Job"]["spec"]["template"]["spec"]


def env(recipe: Recipe) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in pod(recipe)["containers"][0]["env"]}


def test_schemas_from_1_28_on_are_bundled() -> None:
    versions = schema_versions()
    assert versions[0] == "1.28"
    assert len(versions) >= 9


def test_schemas_are_used_as_the_validator_uses_them() -> None:
    """What it refuses is refused, in every version."""
    objects = manifest_objects(on_cluster())
    strict(objects)
    for version in schema_versions():
        kubernetes_validate.validate(copy.deepcopy(objects[-1]), version, strict=True)
    for path, value in (
        (("spec", "completionz"), 2),
        (("spec", "completions"), "2"),
        (("metadata", "labels"), {"a": 1}),
    ):
        wrong = copy.deepcopy(objects[-1])
        wrong[path[0]][path[1]] = value
        with pytest.raises(jsonschema.ValidationError):
            strict([wrong])
        for version in schema_versions():
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(copy.deepcopy(wrong), version, strict=True)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kubernetes", [{}, {**EVERYTHING, "storage": FSX}], ids=["least", "most"])
def test_every_bundled_schema_takes_the_manifest(layer: str, kubernetes: dict[str, Any]) -> None:
    recipe = on_cluster(layer=layer, nodes=4, cluster={"kubernetes": kubernetes})
    strict(list(yaml.safe_load_all(emit_manifest(recipe))))


def test_emission_is_stable_and_names_the_job_after_its_content() -> None:
    first, again = emit_manifest(on_cluster()), emit_manifest(on_cluster())
    assert first == again
    other = emit_manifest(on_cluster(cluster={"kubernetes": {"image": "registry.example/nvrx-run:0.2"}}))
    job, changed = (list(yaml.safe_load_all(text))[-1]["metadata"]["name"] for text in (first, other))
    assert job != changed
    assert re.fullmatch(r"tiny-[0-9a-f]{8}", job)
    difference = set(first.replace(job, "JOB").splitlines()) ^ set(other.replace(changed, "JOB").splitlines())
    assert {re.sub(r"0\.[12]", "0.x", line.strip()) for line in difference} == {
        'image: "registry.example/nvrx-run:0.x"',
    }


def test_changed_environment_changes_the_name_too() -> None:
    names = {
        by_kind(on_cluster(cluster={"kubernetes": change}))["Job"]["metadata"]["name"]
        for change in (
            {},
            {"env": {"A": "1"}},
            {"env": {"A": "2"}},
            {"patches": {"Job": {"spec": {"suspend": True}}}},
        )
    }
    assert len(names) == 4


def test_pods_find_each_other_through_a_headless_service() -> None:
    objects = by_kind(on_cluster(nodes=4))
    service, job = objects["Service"], objects["Job"]
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"] == name
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert env(on_cluster(nodes=4))["NVRX_RUN_LEADER"] == f"{name}-0.{name}"
    assert (job["spec"]["completionMode"], job["spec"]["completions"], job["spec"]["parallelism"]) == (
        "Indexed",
        4,
        4,
    )


def test_container_runs_nvrx_run_itself_on_the_mounted_recipe(tmp_path: Path) -> None:
    recipe = on_cluster(layer="ft_launcher+inprocess", nodes=2)
    container = pod(recipe)["containers"][0]
    assert container["command"] == ["nvrx-run", "/etc/nvrx/recipe.yaml"]
    assert "args" not in container
    mounted = tmp_path / "recipe.yaml"
    mounted.write_text(by_kind(recipe)["ConfigMap"]["data"]["recipe.yaml"])
    again = load_recipe(mounted).recipe
    assert again.output.folder == "/shared/runs/tiny"
    assert again.recovery == recipe.recovery
    assert again.training == recipe.training


def test_metrics_port_is_served_and_found() -> None:
    recipe = on_cluster(output={"live": {"prometheus_port": 9400}})
    objects = by_kind(recipe)
    (port,) = (item for item in pod(recipe)["containers"][0]["ports"] if item["name"] == "metrics")
    assert port == {"name": "metrics", "containerPort": 9400, "protocol": "TCP"}
    (served,) = (item for item in objects["Service"]["spec"]["ports"] if item["name"] == "metrics")
    assert served == {"name": "metrics", "port": 9400, "protocol": "TCP"}
    annotations = objects["Job"]["spec"]["template"]["metadata"]["annotations"]
    found = {key: value for key, value in annotations.items() if key.startswith("prometheus.io/")}
    assert found == {
        "prometheus.io/scrape": "true", "prometheus.io/port": "9400", "prometheus.io/path": "/metrics",
    }  # fmt: skip
    strict(list(objects.values()))
    without = on_cluster()
    assert "prometheus.io" not in emit_manifest(without)
    assert [item["name"] for item in pod(without)["containers"][0]["ports"]] == ["rendezvous"]


def test_annotation_holds_the_launcher_command() -> None:
    recipe = on_cluster(layer="ft_launcher", nodes=4)
    job = by_kind(recipe)["Job"]
    command = job["metadata"]["annotations"]["nvrx-run/launcher-command"]
    name = job["metadata"]["name"]
    assert command.startswith("ft_launcher --nnodes=4 --nproc-per-node=8 ")
    assert f"--rdzv-endpoint={name}-0.{name}:29500 --rdzv-id={name}" in command
    assert "read_timeout=300" in command
    assert command.endswith("--no-python nvrx-worker /etc/nvrx/recipe.yaml")


# Interfaces, as EC2's guide to EFA has them; those of the catalogue that are not here have one.
EFA = {
    "p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16, "g6e.24xlarge": 2, "g6e.48xlarge": 4,
    **{f"{family}.{size}": 0 for family in ("g5", "g6", "g6e") for size in ("xlarge", "2xlarge", "4xlarge")},
}  # fmt: skip


@pytest.mark.parametrize("instance", sorted(INSTANCES))
def test_each_instance_gets_its_devices(instance: str) -> None:
    shape = INSTANCES[instance]
    assert shape.efa == EFA.get(instance, 1)
    recipe = on_cluster(instance, nodes=2)
    container = pod(recipe)["containers"][0]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert requests["nvidia.com/gpu"] == limits["nvidia.com/gpu"] == shape.gpus
    names = env(recipe)
    if shape.efa:
        assert requests["vpc.amazonaws.com/efa"] == limits["vpc.amazonaws.com/efa"] == shape.efa
        assert limits["hugepages-2Mi"] == "5120Mi"
        assert names["FI_PROVIDER"] == "efa"
    else:
        assert "vpc.amazonaws.com/efa" not in limits
        assert "hugepages-2Mi" not in limits
        assert not {name for name in names if name.startswith("FI_")}
    assert int(limits["memory"].removesuffix("Gi")) * 1024 <= 0.9 * shape.allocatable_mib
    assert pod(recipe)["nodeSelector"]["node.kubernetes.io/instance-type"] == instance


def test_single_node_asks_for_no_efa_unless_told() -> None:
    assert "FI_PROVIDER" not in env(on_cluster(nodes=1))
    assert env(on_cluster(nodes=1, cluster={"kubernetes": {"efa": 4}}))["FI_PROVIDER"] == "efa"
    assert "affinity" not in pod(on_cluster(nodes=1))


def test_described_instance_stands_in_for_the_catalogue() -> None:
    shape = {"gpus": 4, "gpu_memory": "80GiB", "efa": 2, "vcpus": 96, "memory": "1TiB", "nvme": "3TB"}
    recipe = on_cluster("p9.new", cluster={"instance": shape})
    limits = pod(recipe)["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == (4, 2)
    assert pod(recipe)["nodeSelector"]["node.kubernetes.io/instance-type"] == "p9.new"


def shm(recipe: Recipe) -> int:
    (volume,) = (item for item in pod(recipe)["volumes"] if item["name"] == "shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    size = volume["emptyDir"]["sizeLimit"]
    return int(size[:-2]) * {"Mi": 2**20, "Gi": 2**30}[size[-2:]]


def test_shared_memory_holds_staging_buffers_and_data_workers() -> None:
    llama = {"model": {"architecture": None, "name": "meta-llama/Llama-3.1-8B"}}
    base = on_cluster(nodes=2, **llama)
    state = 8.03e9 * 12
    assert state < shm(base) < 1.4 * state  # two buffers, half of the state a node
    often = on_cluster(nodes=2, checkpoint={"snapshot_every": 1}, **llama)
    assert 1.5 * state < shm(often) < 2 * state  # a third, which the writer reads
    assert shm(on_cluster(nodes=4, **llama)) < shm(base) / 1.9
    with_workers = on_cluster(nodes=2, dataset={"workers": 2}, **llama)
    assert shm(with_workers) - shm(base) == 8 * 2 * 2**30
    unknown = on_cluster(nodes=2, model={"architecture": None, "name": "org/unheard-of"})
    assert shm(unknown) == 1703 * 2**30 // 2
    assert shm(on_cluster(cluster={"kubernetes": {"shm_size": "40GiB"}})) == 40 * 2**30


def test_scheduling_follows_the_recipe() -> None:
    spec = pod(on_cluster(nodes=4, cluster={"kubernetes": EVERYTHING}))
    assert spec["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/zone": "us-east-1a",
        "eks.amazonaws.com/nodegroup": "gpus",
        "team": "nlp",
    }
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"},
    ]
    job = by_kind(on_cluster(nodes=4, cluster={"kubernetes": EVERYTHING}))["Job"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == "topology.k8s.aws/network-node-layer-3"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_blank_taint_value_is_left_out(tmp_path: Path) -> None:
    """As it comes from an unset variable: blank is what an absent value means, and `Exists` takes none."""
    blank = [
        {"key": "team", "operator": "Equal", "value": "", "effect": "NoSchedule"},
        {"key": "spot", "value": ""},
    ]
    recipe = on_cluster(cluster={"kubernetes": {"tolerations": blank}})
    assert pod(recipe)["tolerations"][1:] == [
        {"key": "team", "operator": "Equal", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
    path = tmp_path / "recipe.yaml"
    path.write_text((Path(__file__).parents[2] / "recipes" / "llama8b-sync-none.yaml").read_text())
    given = 'cluster.kubernetes.tolerations=[{key: spot, value: "${TAINT:-}"}]'
    assert pod(load_recipe(path, (given,), {}).recipe)["tolerations"][1:] == [
        {"key": "spot", "operator": "Exists"}
    ]


def test_without_a_zone_the_pods_share_one_and_a_topology_hint_becomes_affinity() -> None:
    affinity = pod(on_cluster(nodes=2, cluster={"kubernetes": {"topology": {}}}))["affinity"]
    near = affinity["podAffinity"]
    (zone,) = near["requiredDuringSchedulingIgnoredDuringExecution"]
    assert zone["topologyKey"] == "topology.kubernetes.io/zone"
    (hint,) = near["preferredDuringSchedulingIgnoredDuringExecution"]
    assert hint["podAffinityTerm"]["topologyKey"] == "topology.k8s.aws/network-node-layer-3"
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"


def test_hyperpod_nodes_are_chosen_by_their_labels() -> None:
    selector = pod(on_cluster(cluster={"kubernetes": {"hyperpod": True}}))["nodeSelector"]
    assert selector["node.kubernetes.io/instance-type"] == "ml.p5.48xlarge"
    assert selector["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"


def test_environment_values_are_texts_and_secrets_are_references() -> None:
    recipe = on_cluster(cluster={"kubernetes": EVERYTHING})
    values = env(recipe)
    assert (values["N"], values["F"], values["RATE"], values["MODE"]) == ("1", "true", "0.5", "1e3")
    text = emit_manifest(recipe)
    assert 'value: "1e3"' in text
    (token,) = (item for item in pod(recipe)["containers"][0]["env"] if item["name"] == "HF_TOKEN")
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}}


def test_users_value_replaces_the_products_own() -> None:
    values = env(
        on_cluster(cluster={"kubernetes": {"env": {"OMP_NUM_THREADS": 8, "HF_HOME": "/shared/hub"}}})
    )
    assert (values["OMP_NUM_THREADS"], values["HF_HOME"]) == ("8", "/shared/hub")


@pytest.mark.parametrize("layer", LAYERS)
def test_failure_policy_tells_final_codes_from_those_that_a_new_pod_mends(layer: str) -> None:
    recipe = on_cluster(layer=layer, nodes=4)
    job = by_kind(recipe)["Job"]["spec"]
    fail, disrupted, preempted = job["podFailurePolicy"]["rules"]
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"]["values"] == [
        ExitCode.BAD_RECIPE, ExitCode.NO_LOADABLE_CHECKPOINT, ExitCode.NO_PROGRESS,
    ]  # fmt: skip
    assert disrupted == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert preempted["action"] == "Ignore"
    assert preempted["onExitCodes"]["values"] == [ExitCode.PREEMPTED]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["podReplacementPolicy"] == "Failed"
    assert job["backoffLimit"] == {"none": 40, "inprocess": 20}.get(layer, 12)


def test_grace_period_exceeds_a_save() -> None:
    recipe = on_cluster(recovery={"layer": "ft_launcher", "stop_timeout": "10m"})
    assert pod(recipe)["terminationGracePeriodSeconds"] == 660
    slow = on_cluster(recovery={"layer": "ft_launcher", "ft_launcher": {"term_timeout": "20m"}})
    assert pod(slow)["terminationGracePeriodSeconds"] == 1260
    job = by_kind(on_cluster(cluster={"kubernetes": EVERYTHING}))["Job"]["spec"]
    assert (job["activeDeadlineSeconds"], job["ttlSecondsAfterFinished"]) == (72000, 604800)


def test_pods_satisfy_the_restricted_level() -> None:
    recipe = on_cluster(cluster={"kubernetes": {"pod_security": "restricted"}})
    container = pod(recipe)["containers"][0]["securityContext"]
    assert container == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    spec = pod(recipe)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    locked = on_cluster(cluster={"kubernetes": {"ipc_lock": True, "pod_security": "privileged"}})
    assert pod(locked)["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_fsx_is_a_static_volume_that_outlives_the_manifest() -> None:
    objects = by_kind(on_cluster(cluster={"kubernetes": {"storage": FSX, "namespace": "team"}}))
    volume, claim = objects["PersistentVolume"], objects["PersistentVolumeClaim"]
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["spec"]["csi"]["volumeHandle"] == FSX["file_system_id"]
    assert volume["spec"]["mountOptions"] == ["flock"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"] == "team-tiny-storage"
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert [item["kind"] for item in manifest_objects(on_cluster(cluster={"kubernetes": {"storage": FSX}}))] == [
        "PersistentVolume", "PersistentVolumeClaim", "ServiceAccount", "ConfigMap", "Service", "Job",
    ]  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2, 10, 11, 100, 1000])
@pytest.mark.parametrize("name", ["x" * 52, "9" * 52, "a-" * 25 + "b", "7b"])
def test_names_fit_whatever_the_recipe_is_called(name: str, nodes: int) -> None:
    recipe = on_cluster(nodes=nodes, name=name)
    job = make_names(recipe, "0123456789abcdef").job
    assert len(f"{job}-{nodes - 1}") <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job)
    assert "--" not in job or "--" in name


def test_existing_service_account_is_used_and_not_emitted() -> None:
    objects = by_kind(on_cluster(cluster={"kubernetes": {"service_account": "mine"}}))
    assert "ServiceAccount" not in objects
    assert objects["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_patch_merges_lists_by_their_keys() -> None:
    change = {
        "Job": {
            "spec": {
                "backoffLimit": None,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "trainer",
                                "env": [
                                    {"name": "OMP_NUM_THREADS", "value": "4"},
                                    {"name": "USER", "$patch": "delete"},
                                ],
                                "volumeMounts": [{"mountPath": "/more", "name": "more"}],
                            }
                        ],
                        "volumes": [{"name": "more", "emptyDir": {}}],
                        "tolerations": [],
                    }
                },
            }
        },
        "Service": {"spec": {"ports": [{"port": 29500, "name": "meet"}]}},
    }
    recipe = on_cluster(
        cluster={"kubernetes": {"patches": change}}, output={"live": {"prometheus_port": 9400}}
    )
    objects = by_kind(recipe)
    strict(list(objects.values()))
    assert "backoffLimit" not in objects["Job"]["spec"]
    assert env(recipe)["OMP_NUM_THREADS"] == "4"
    assert "USER" not in env(recipe)
    assert "tolerations" in pod(recipe)
    assert pod(recipe)["tolerations"] == []
    mounts = [item["mountPath"] for item in pod(recipe)["containers"][0]["volumeMounts"]]
    assert mounts == ["/etc/nvrx", "/shared", "/dev/shm", "/tmp", "/more"]
    assert [port["name"] for port in objects["Service"]["spec"]["ports"]] == ["meet", "metrics"]


def test_header_states_how_to_stop_before_a_changed_job() -> None:
    text = emit_manifest(on_cluster(cluster={"kubernetes": merged(EVERYTHING, {"namespace": "team"})}))
    assert "kubectl -n team delete job,service,configmap -l nvrx-run/run=tiny" in text.split("---")[0]


def test_quick_check_and_models_emit_the_same() -> None:
    """The command emits from the quick check's view, which needs no pydantic."""
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml")):
        loaded = load_recipe(path)
        if loaded.recipe.cluster.kubernetes is not None:
            assert emit_manifest(cast(Recipe, loaded.view)) == emit_manifest(loaded.recipe)


def removes(recipe: Recipe, emit: Callable[[Recipe], str] = emit_manifest) -> str:
    """What a manifest's header says of its removal, on one line."""
    lines = emit(recipe).splitlines()
    start = lines.index("# Remove: kubectl delete -f FILE") + 1
    told = itertools.takewhile(lambda line: line.startswith("#  "), lines[start:])
    return " ".join(line.removeprefix("#").strip() for line in told)


def test_header_says_what_removal_takes_along() -> None:
    made, fsx = {"create_namespace": True, "namespace": "team"}, {"storage": FSX}
    stay = "the data on the shared storage stay"
    everything = (
        "deletes the namespace team with ALL that is in it: other runs, Secrets, and claims, whose data go too where "
        "the reclaim policy of their volume is Delete"
    )
    for emit in (emit_manifest, emit_data_job):
        assert removes(on_cluster(), emit) == stay
        assert removes(on_cluster(cluster={"kubernetes": fsx}), emit) == stay
        assert removes(on_cluster(cluster={"kubernetes": made}), emit) == everything
        assert removes(on_cluster(cluster={"kubernetes": made | fsx}), emit) == f"{everything} {stay}"
    deleted = {"patches": {"PersistentVolume": {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}}}
    assert "data on the shared storage go too" in removes(on_cluster(cluster={"kubernetes": fsx | deleted}))


def test_local_storage_may_be_filled_beside_logs_and_scratch(tmp_path: Path) -> None:
    recipe = on_cluster(cluster={"kubernetes": {"local_storage": {"size": "500GiB"}}})
    resources = pod(recipe)["containers"][0]["resources"]
    assert resources["requests"]["ephemeral-storage"] == "500Gi"
    assert resources["limits"]["ephemeral-storage"] == "520Gi"
    (volume,) = (item for item in pod(recipe)["volumes"] if item["name"] == "local")
    assert volume["emptyDir"] == {"sizeLimit": "500Gi"}
    path = Path(__file__).parents[2] / "recipes" / "llama8b-sync-none.yaml"
    room = INSTANCES["p5.48xlarge"].local_bytes
    for size, code in ((room, []), (room + 1, ["R722"])):
        override = f"cluster.kubernetes.local_storage={{size: {size}}}"
        assert [item.code for item in check_file(path, [override], {})[1]] == code
    (problem,) = check_file(path, ["cluster.kubernetes.local_storage.size=500TiB"], {})[1]
    assert problem.message.startswith("549756 GB of 27338 GB that p5.48xlarge has for it")


def seconds(*arguments: str) -> float:
    """User and system time of one command, the least of five."""
    best = 1e9
    for _ in range(5):
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "runner.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        after = os.times()
        assert done.returncode == 0, done.stderr
        best = min(
            best, after.children_user + after.children_system - before.children_user - before.children_system
        )
    return best


def test_emission_takes_less_than_twice_the_time_of_validation_and_imports_nothing_heavy() -> None:
    recipe = str(Path(__file__).parents[2] / "recipes" / "llama8b-async-combined.yaml")
    validated = seconds("--validate", recipe)
    emitted = seconds("--emit-manifest", recipe)
    assert emitted < 2 * validated, (emitted, validated)
    code = (
        "import sys; from runner import cli; cli.main(sys.argv[1:]);"
        "print([name for name in ('pydantic', 'torch', 'datasets') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--emit-manifest", recipe],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"
