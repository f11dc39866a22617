"""Whatever a valid recipe says of its cluster: its manifest passes the own checks and every version's strict schema."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from recipes_for_tests import LAYERS, merged, tiny_data
from test_manifest import FSX, schema_versions

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
_kubernetes = st.builds(
    lambda storage, rest: {"image": "registry.example/nvrx-run:0.1", "storage": storage, **rest},
    _storage,
    _maybe(
        image=st.from_regex(
            r"[a-z0-9]{1,9}(\.[a-z]{2,5}){0,2}(/[a-z0-9]{1,9}){0,2}(:[a-z0-9.]{1,9})?", fullmatch=True
        ),
        image_pull_policy=st.sampled_from(["IfNotPresent", "Always", "Never"]),
        image_pull_secrets=st.lists(_dns, max_size=3, unique=True),
        namespace=_dns,
        create_namespace=st.booleans(),
        pod_security=st.sampled_from(["restricted", "baseline", "privileged"]),
        local_storage=st.fixed_dictionaries({"size": st.integers(1, 200 * 10**9)}),
        shm_size=st.integers(2**20, 8 * 2**30),
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
_cluster = st.builds(
    lambda instance, nodes, kubernetes, rest: {
        "accelerator": "auto", "processes_per_node": None, "instance_type": instance, "nodes": nodes,
        "kubernetes": kubernetes, **rest,
    },
    st.sampled_from(sorted(INSTANCES)),
    st.integers(1, 1024),
    _kubernetes,
    _maybe(
        rendezvous_port=st.integers(1024, 65534),
        processes_per_node=st.just(1),
        nvrx_version=st.sampled_from(["0.4.1", "0.5.0", "0.6.0", "0.7.0"]),
        accelerator=st.sampled_from(["cuda", "cpu", "auto"]),
    ),
)  # fmt: skip
_changes = st.builds(
    lambda name, layer, cluster, workers, strategy: {
        "name": name, "recovery": {"layer": layer}, "cluster": cluster, "dataset": {"workers": workers},
        "sharding": {"strategy": strategy},
    },
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True),
    st.sampled_from(LAYERS),
    _cluster,
    st.integers(0, 1),
    st.sampled_from(["fsdp", "ddp"]),
)  # fmt: skip


def _valid(changes: dict[str, Any]) -> Recipe:
    data = merged(tiny_data(), changes)
    data["cluster"] = changes["cluster"]
    ranks = changes["cluster"]["processes_per_node"] or INSTANCES[changes["cluster"]["instance_type"]].gpus
    data["training"]["global_batch_size"] = 2 * ranks * changes["cluster"]["nodes"]
    if changes["cluster"].get("accelerator") == "cpu" and changes["cluster"]["processes_per_node"] is None:
        data["training"]["global_batch_size"] = 2 * changes["cluster"]["nodes"]
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
    for version in schema_versions():
        for item in objects:
            kubernetes_validate.validate(copy.deepcopy(item), version, strict=True)
    job = objects[-1]
    assert len(f"{job['metadata']['name']}-{recipe.cluster.nodes - 1}") <= 63
    (config,) = (item for item in objects if item["kind"] == "ConfigMap")
    mounted = Recipe.model_validate(yaml.safe_load(config["data"]["recipe.yaml"].replace("$${", "${")))
    assert recipe_text(mounted, folder="/elsewhere") == config["data"]["recipe.yaml"]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_changes)
def test_any_valid_recipe_emits_what_every_version_takes(changes: dict[str, Any]) -> None:
    _holds(changes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(_changes)
def test_any_valid_recipe_at_length(changes: dict[str, Any]) -> None:
    _holds(changes)
