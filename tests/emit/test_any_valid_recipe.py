"""Whatever a valid recipe says of its cluster: its manifest passes the own checks and every version's strict schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from recipes_for_tests import LAYERS, merged, tiny_data
from strict_schemas import strict
from test_manifest import FSX

from runner.emit.manifest import emit_manifest, manifest_objects
from runner.emit.recipe_text import recipe_text
from runner.recipe.checks import check
from runner.recipe.instances import INSTANCES
from runner.recipe.node import Node, Position
from runner.recipe.recipe import Recipe

_dns = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
_label = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)
_key = st.one_of(_label, st.builds("{}.example/{}".format, _dns, _label))
_text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=30)
_env_name = st.from_regex(r"[A-Z][A-Z0-9_]{2,12}", fullmatch=True).map(lambda name: f"X_{name}")
_env_value = st.one_of(_text, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
_seconds = st.integers(60, 10**6)


def _maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_toleration = st.one_of(
    _maybe(key=_key, effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])),
    st.fixed_dictionaries({"key": _key, "operator": st.just("Equal"), "value": _label}),
)
_storage = st.one_of(
    st.builds(lambda name: {"source": "claim", "claim_name": name}, _dns),
    st.just(FSX),
    st.builds(lambda path: {**FSX, "mount_path": f"/mnt/{path}"}, _dns),
)
_privileged = st.sampled_from(
    [
        {},
        {"pod_security": "restricted"},
        {"pod_security": "privileged", "ipc_lock": True},
        {"ipc_lock": False},
    ]
)
_extra = st.lists(_dns, max_size=3, unique=True).map(
    lambda names: {
        "volumes": [{"name": f"x-{name}", "configMap": {"name": name}} for name in names],
        "volume_mounts": [
            {"name": f"x-{name}", "mountPath": f"/extra/{name}", "readOnly": True} for name in names
        ],
    }
)
_job_patch = st.one_of(
    st.builds(lambda on: {"suspend": on}, st.booleans()),
    st.builds(
        lambda name, value: {
            "template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": name, "value": value}]}]}}
        },
        _env_name, _text,
    ),
    st.builds(lambda seconds: {"template": {"spec": {"terminationGracePeriodSeconds": seconds}}}, _seconds),
    st.builds(
        lambda name: {
            "template": {"spec": {
                "volumes": [{"name": "patched", "secret": {"secretName": name}}],
                "containers": [{"name": "trainer", "volumeMounts": [{"name": "patched", "mountPath": "/patched"}]}],
            }}
        },
        _dns,
    ),
    st.just({"template": {"spec": {"affinity": None}}}),
).map(lambda spec: {"spec": spec})  # fmt: skip
_patch = _maybe(
    Job=_job_patch,
    Service=st.builds(lambda key, value: {"metadata": {"annotations": {key: value}}}, _key, _text),
    ConfigMap=st.builds(lambda key, value: {"metadata": {"labels": {key: value}}}, _key, _label),
)
_kubernetes = st.builds(
    lambda storage, privileged, extra, rest: {
        **rest,
        **privileged,
        **extra,
        "image": rest.get("image", "registry.example/nvrx-run:0.1"),
        "storage": storage,
    },
    _storage,
    _privileged,
    _extra,
    _maybe(
        image=st.from_regex(
            r"[a-z0-9]{1,9}(\.[a-z]{2,5}){0,2}(/[a-z0-9]{1,9}){0,2}(:[a-z0-9.]{1,9})?", fullmatch=True
        ),
        efa=st.integers(0, 4),
        resources=_maybe(
            cpu=st.sampled_from(["500m", "2", "3.5"]), memory=st.sampled_from(["6Gi", "9G", "7000Mi"])
        ),
        run_as_group=st.integers(1, 2**31 - 1),
        grace_period=st.integers(301, 10**5),
        patches=_patch,
        image_pull_policy=st.sampled_from(["IfNotPresent", "Always", "Never"]),
        image_pull_secrets=st.lists(_dns, max_size=3, unique=True),
        namespace=st.one_of(_dns, st.just("n" * 63)),
        create_namespace=st.booleans(),
        local_storage=st.fixed_dictionaries({"size": st.integers(1, 200 * 10**9)}),
        shm_size=st.integers(2**28, 4 * 2**30),
        zone=_label,
        node_group=_label,
        hyperpod=st.booleans(),
        node_selector=st.dictionaries(_key, _label, max_size=3),
        tolerations=st.lists(_toleration, max_size=3),
        topology=_maybe(label=_key, required=st.booleans()),
        priority_class=_dns,
        kueue_queue=_dns,
        karpenter_do_not_disrupt=st.booleans(),
        service_account=_dns,
        run_as_user=st.integers(1, 2**31 - 1),
        env=st.dictionaries(_env_name, _env_value, max_size=4),
        secret_env=st.dictionaries(
            st.just("HF_TOKEN"), st.fixed_dictionaries({"secret": _dns, "key": _label}), max_size=1
        ),
        labels=st.dictionaries(_key, _label, max_size=3),
        annotations=st.dictionaries(_key, _text, max_size=3),
        service_account_annotations=st.dictionaries(_key, _text, max_size=2),
        pod_restarts=st.integers(0, 1000),
        active_deadline=_seconds,
        ttl_after_finished=st.one_of(st.none(), _seconds),
        leader_timeout=_seconds,
    ),
)
_shape = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 16),
        "vcpus": st.integers(8, 256),
        "memory": st.integers(32, 4096).map("{}GiB".format),
    },
    optional={
        "gpu_memory": st.just("80GiB"),
        "efa": st.integers(0, 32),
        "nvme": st.integers(0, 30).map("{}TB".format),
    },
)
_node = st.one_of(
    st.sampled_from(sorted(INSTANCES)).map(lambda name: {"instance_type": name}),
    st.builds(lambda shape: {"instance_type": "p9.new", "instance": shape}, _shape),
)
_cluster = st.builds(
    lambda node, nodes, kubernetes, rest: {
        "accelerator": "auto", "processes_per_node": None, "nodes": nodes, "kubernetes": kubernetes, **rest, **node,
    },
    _node,
    st.one_of(st.integers(1, 4), st.integers(1, 1024)),
    _kubernetes,
    _maybe(
        rendezvous_port=st.integers(1024, 65535),
        processes_per_node=st.just(1),
        nvrx_version=st.sampled_from(["0.4.1", "0.5.0", "0.6.0", "0.7.0"]),
        accelerator=st.sampled_from(["cuda", "cpu", "auto"]),
    ),
)  # fmt: skip
_checkpoint = st.fixed_dictionaries(
    {"mode": st.sampled_from(["sync", "async"]), "every": st.integers(1, 20)},
    optional={"snapshot_every": st.integers(1, 5), "keep_last": st.integers(1, 9), "folder": st.just("ckpt")},
)
_recovery = st.builds(
    lambda layer, rest: {"layer": layer, **rest},
    st.sampled_from(LAYERS),
    _maybe(
        stop_timeout=st.integers(60, 300),
        start_timeout=st.integers(5, 59),
        rendezvous_timeout=st.integers(150, 900),
    ),
)
_dataset = st.builds(
    lambda workers, rest: {"workers": workers, **rest},
    st.integers(0, 1),
    st.one_of(
        st.just({}),
        st.just({"source": "hub", "name": "org/text", "tokenizer": "bytes", "sequence_length": 64}),
        st.just({"source": "saved", "path": "data/text", "tokenizer": "bytes", "sequence_length": 64}),
        st.just(
            {
                "source": "files",
                "format": "json",
                "paths": ["d/*.json"],
                "tokenizer": "bytes",
                "sequence_length": 64,
            }
        ),
    ),
)
_output = _maybe(
    folder=st.just("runs/elsewhere"),
    log_format=st.sampled_from(["console", "json"]),
    live=_maybe(tensorboard=st.booleans(), prometheus_port=st.integers(1024, 65535)),
)
_changes = st.builds(
    lambda name, recovery, cluster, dataset, strategy, checkpoint, output: {
        "name": name, "recovery": recovery, "cluster": cluster, "dataset": dataset, "checkpoint": checkpoint,
        "sharding": {"strategy": strategy}, "output": output,
    },
    st.one_of(st.from_regex(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True), st.just("a" * 52)),
    _recovery,
    _cluster,
    _dataset,
    st.sampled_from(["fsdp", "ddp"]),
    _checkpoint,
    _output,
)  # fmt: skip


def _features(changes: dict[str, Any]) -> list[str]:
    """What a recipe uses, to be counted: the strategy must reach all of it."""
    cluster, kubernetes = changes["cluster"], changes["cluster"]["kubernetes"]
    return [
        f"layer {changes['recovery']['layer']}",
        f"storage {kubernetes['storage']['source']}",
        f"checkpoints {changes['checkpoint']['mode']}",
        f"data {changes['dataset'].get('source', 'embedded')}",
        f"nodes {min(cluster['nodes'], 2)}{'+' if cluster['nodes'] > 1 else ''}",
        "described instance" if "instance" in cluster else "known instance",
        *(f"patch {kind}" for kind in kubernetes.get("patches", {})),
        *(key for key in kubernetes if key not in ("image", "storage", "patches") and kubernetes[key]),
        *([] if kubernetes.get("karpenter_do_not_disrupt", True) else ["no karpenter annotation"]),
        *(["metrics"] if changes["output"].get("live", {}).get("prometheus_port") else []),
    ]


WANTED = {
    *(f"layer {layer}" for layer in LAYERS), "storage claim", "storage fsx", "checkpoints sync", "checkpoints async",
    "data embedded", "data hub", "data saved", "data files", "nodes 1", "nodes 2+", "described instance",
    "known instance", "patch Job", "patch Service", "patch ConfigMap", "metrics", "kueue_queue", "topology",
    "no karpenter annotation", "local_storage", "shm_size", "efa", "resources", "env", "secret_env", "ipc_lock",
    "volumes", "tolerations", "node_selector", "zone", "hyperpod", "labels", "annotations", "create_namespace",
    "service_account", "active_deadline", "grace_period",
}  # fmt: skip


def _valid(changes: dict[str, Any]) -> Recipe:
    data = merged(tiny_data(), changes)
    data["cluster"] = changes["cluster"]
    cluster = changes["cluster"]
    gpus = cluster["instance"]["gpus"] if "instance" in cluster else INSTANCES[cluster["instance_type"]].gpus
    on_cpu = cluster.get("accelerator") == "cpu"
    ranks = cluster["processes_per_node"] or (1 if on_cpu else max(1, gpus))
    data["training"]["global_batch_size"] = 2 * ranks * cluster["nodes"]
    if ranks * cluster["nodes"] > data["model"]["architecture"]["hidden_size"]:
        data["sharding"]["strategy"] = "ddp"  # the tiny model cannot be cut into so many shards
    recipe = Recipe.model_validate(data)
    problems = check(recipe, Node({}, Position("", 0, 0, 0, 0)))
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        event(f"refused: {errors[0].code}")
    assume(not errors)
    return recipe


def _holds(changes: dict[str, Any]) -> None:
    recipe = _valid(changes)
    objects = manifest_objects(recipe)  # runs the own checks
    read = list(yaml.safe_load_all(emit_manifest(recipe)))
    assert read == objects
    strict(objects)
    job = objects[-1]
    assert len(f"{job['metadata']['name']}-{recipe.cluster.nodes - 1}") <= 63
    (config,) = (item for item in objects if item["kind"] == "ConfigMap")
    mounted = Recipe.model_validate(yaml.safe_load(config["data"]["recipe.yaml"].replace("$${", "${")))
    assert recipe_text(mounted, folder="/elsewhere") == config["data"]["recipe.yaml"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_changes)
def test_any_valid_recipe_emits_what_every_version_takes(changes: dict[str, Any]) -> None:
    _holds(changes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_valid_recipe_at_length() -> None:
    """And that the recipes that were tried use every feature."""
    seen = set[str]()

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_changes)
    def each(changes: dict[str, Any]) -> None:
        _holds(changes)
        seen.update(_features(changes))

    each()
    assert seen >= WANTED, f"never tried: {sorted(WANTED - seen)}"
