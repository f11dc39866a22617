"""Each way in which a patched object would be refused, or fail once it is accepted, is refused here, with its path."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_fields import TARGET, text
from recipes_for_tests import on_cluster

from runner.emit.findings import ManifestErrors
from runner.emit.manifest import manifest_objects

C0 = "Job.spec.template.spec.containers[0]"
POD = "Job.spec.template.spec"


def job(**spec: Any) -> dict[str, Any]:
    return {"Job": {"spec": spec}}


def pod(**spec: Any) -> dict[str, Any]:
    return job(template={"spec": spec})


def container(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "trainer", **fields}])


def rules(*items: dict[str, Any]) -> dict[str, Any]:
    return job(podFailurePolicy={"rules": list(items)})


def codes(
    *values: int, operator: str = "In", container_name: str = "trainer", action: str = "FailJob"
) -> dict[str, Any]:
    exit_codes = {"containerName": container_name, "operator": operator, "values": list(values)}
    return {"action": action, "onExitCodes": exit_codes}


GPU, EFA, HUGE = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    # what schemas catch too
    "env value not a text": (container(env=[{"name": "N", "value": 1}]), f"{C0}.env[17].value"),
    "label not a text": ({"Job": {"metadata": {"labels": {"n": 1}}}}, "Job.metadata.labels.n"),
    "completions as a text": (job(completions="2"), "Job.spec.completions"),
    "unknown field, shallow": (job(completionz=2), "Job.spec.completionz"),
    "unknown field, deep": (container(resources={"limit": {}}), f"{C0}.resources.limit"),
    "unknown field of a volume": (
        pod(volumes=[{"name": "shm", "emptyDir": {"size": "1Gi"}}]), f"{POD}.volumes[2].emptyDir.size",
    ),
    "containers as a mapping": (pod(containers={"$patch": "replace", "a": {}}), f"{POD}.containers"),
    # what they miss
    "bad name": ({"Job": {"metadata": {"name": "Tiny_Job"}}}, "Job.metadata.name"),
    "name too long": ({"Job": {"metadata": {"name": "x" * 64}}}, "Job.metadata.name"),
    "host name too long": ({"Job": {"metadata": {"name": "x" * 62}}}, "Job.spec.completions"),
    "service name begins with a digit": ({"Service": {"metadata": {"name": "7b"}}}, "Service.metadata.name"),
    "bad label value": ({"Job": {"metadata": {"labels": {"a": "b c"}}}}, "Job.metadata.labels.a"),
    "bad label key": ({"Job": {"metadata": {"labels": {"a b": "c"}}}}, "Job.metadata.labels.a b"),
    "duplicate volume": (
        pod(volumes=[{"$patch": "replace"}, {"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
        f"{POD}.volumes[1].name",
    ),
    "volume with two sources": (
        pod(volumes=[{"name": "two", "emptyDir": {}, "configMap": {"name": "x"}}]), f"{POD}.volumes[4]",
    ),
    "volume without a source": (pod(volumes=[{"name": "none"}]), f"{POD}.volumes[4]"),
    "mount of a missing volume": (
        container(volumeMounts=[{"mountPath": "/m", "name": "absent"}]), f"{C0}.volumeMounts[4].name",
    ),
    "relative mount": (container(volumeMounts=[{"mountPath": "m", "name": "shm"}]), f"{C0}.volumeMounts[4].mountPath"),
    "no image": (container(image=None), f"{C0}.image"),
    "container without a name of its own": (
        pod(containers=[{"name": "trainer", "$patch": "delete"}]), f"{POD}.containers",
    ),
    "bad env name": (container(env=[{"name": "A B", "value": "c"}]), f"{C0}.env[17].name"),
    "env with two sources": (
        container(env=[{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        f"{C0}.env[17]",
    ),
    "literal credential": (container(env=[{"name": "HF_TOKEN", "value": "abc"}]), f"{C0}.env[17].value"),
    "credential in an annotation": (
        {"Job": {"metadata": {"annotations": {"a": "hf_" + "x" * 30}}}}, "Job.metadata.annotations.a",
    ),
    "bad quantity": (container(resources={"requests": {"memory": "10GB"}}), f"{C0}.resources.requests.memory"),
    "unknown resource": (container(resources={"requests": {"gpu": 1}}), f"{C0}.resources.requests.gpu"),
    "request above the limit": (
        container(resources={"requests": {"memory": "9Ti"}}), f"{C0}.resources.requests.memory",
    ),
    "fractional GPU": (
        container(resources={"requests": {GPU: "0.5"}, "limits": {GPU: "0.5"}}), f"{C0}.resources.requests.{GPU}",
    ),
    "GPU request differs from the limit": (
        container(resources={"requests": {GPU: 4}}), f"{C0}.resources.requests.{GPU}",
    ),
    "GPU without a limit": (container(resources={"limits": {GPU: None}}), f"{C0}.resources.limits.{GPU}"),
    "EFA request differs from the limit": (container(resources={"limits": {EFA: 8}}), f"{C0}.resources.requests.{EFA}"),
    "huge pages alone": (
        container(resources={"$patch": "replace", "limits": {HUGE: "64Mi", EFA: 1}}), f"{C0}.resources.limits.{HUGE}",
    ),
    "odd huge pages": (
        container(resources={"requests": {HUGE: "3Mi"}, "limits": {HUGE: "3Mi"}}), f"{C0}.resources.requests.{HUGE}",
    ),
    "EFA variable without EFA": (
        container(resources={"requests": {EFA: None}, "limits": {EFA: None}}), f"{C0}.env",
    ),
    "unbounded /dev/shm": (
        pod(volumes=[{"name": "shm", "emptyDir": {"sizeLimit": None}}]), f"{POD}.volumes[2].emptyDir.sizeLimit",
    ),
    "/dev/shm above the memory": (
        pod(volumes=[{"name": "shm", "emptyDir": {"sizeLimit": "9Ti"}}]), f"{POD}.volumes[2].emptyDir.sizeLimit",
    ),
    "toleration Exists with a value": (
        pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), f"{POD}.tolerations[0].value",
    ),
    "toleration Equal without a key": (
        pod(tolerations=[{"operator": "Equal", "value": "b"}]), f"{POD}.tolerations[0].key",
    ),
    "bad node selector": (pod(nodeSelector={"a": "b c"}), f"{POD}.nodeSelector.a"),
    "restartPolicy Always": (pod(restartPolicy="Always"), f"{POD}.restartPolicy"),
    "failure policy with OnFailure": (pod(restartPolicy="OnFailure"), f"{POD}.restartPolicy"),
    "hand-made selector": (job(selector={"matchLabels": {"a": "b"}}), "Job.spec.selector"),
    "completionMode typo": (job(completionMode="indexed"), "Job.spec.completionMode"),
    "no completionMode": (job(completionMode=None), "Job.spec.completionMode"),
    "limit per index without Indexed": (
        job(completionMode="NonIndexed", backoffLimitPerIndex=1), "Job.spec.backoffLimitPerIndex",
    ),
    "maxFailedIndexes alone": (job(maxFailedIndexes=1), "Job.spec.maxFailedIndexes"),
    "fewer pods at a time than nodes": (job(parallelism=1), "Job.spec.parallelism"),
    "exit 0 in a rule": (rules(codes(0, 2)), "Job.spec.podFailurePolicy.rules[0].onExitCodes.values"),
    "exit codes out of order": (rules(codes(3, 2)), "Job.spec.podFailurePolicy.rules[0].onExitCodes.values"),
    "rule for a container that is not there": (
        rules(codes(2, container_name="main")), "Job.spec.podFailurePolicy.rules[0].onExitCodes.containerName",
    ),
    "FailIndex without a limit per index": (
        rules(codes(2, action="FailIndex")), "Job.spec.podFailurePolicy.rules[0].action",
    ),
    "rule with two criteria": (
        rules({**codes(2), "onPodConditions": DISRUPTED}), "Job.spec.podFailurePolicy.rules[0]",
    ),
    "rule without a criterion": (rules({"action": "Ignore"}), "Job.spec.podFailurePolicy.rules[0]"),
    "too many rules": (rules(*(codes(2) for _ in range(21))), "Job.spec.podFailurePolicy.rules"),
    "replacement beside the old pod": (
        job(podReplacementPolicy="TerminatingOrFailed"), "Job.spec.podReplacementPolicy",
    ),
    "no grace": (pod(terminationGracePeriodSeconds=0), f"{POD}.terminationGracePeriodSeconds"),
    "a shell as PID 1": (container(command=["/bin/sh", "-c", "nvrx-run x"]), f"{C0}.command"),
    "folder of the host": (
        pod(volumes=[{"name": "shm", "emptyDir": None, "hostPath": {"path": "/dev/shm"}}]),
        f"{POD}.volumes[2].hostPath",
    ),
    "host network": (pod(hostNetwork=True), f"{POD}.hostNetwork"),
    "IPC_LOCK": (
        container(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}), f"{C0}.securityContext.capabilities.add",
    ),
    "privileged": (container(securityContext={"privileged": True}), f"{C0}.securityContext.privileged"),
    "service with an address": ({"Service": {"spec": {"clusterIP": None}}}, "Service.spec.clusterIP"),
    "names only of ready pods": (
        {"Service": {"spec": {"publishNotReadyAddresses": False}}}, "Service.spec.publishNotReadyAddresses",
    ),
    "service of another job": (
        {"Service": {"spec": {"selector": {"batch.kubernetes.io/job-name": "other"}}}}, "Service.spec.selector",
    ),
    "subdomain of another service": (pod(subdomain="other"), f"{POD}.subdomain"),
    "leader of another job": (
        container(env=[{"name": "NVRX_RUN_LEADER", "value": "a-0.a"}]), f"{C0}.env[0].value",
    ),
    "other namespace": ({"Service": {"metadata": {"namespace": "other"}}}, "Service.metadata.namespace"),
    "no recipe": (pod(volumes=[{"name": "recipe", "configMap": {"name": "other"}}]), f"{POD}.volumes"),
    "no storage": (
        pod(volumes=[{"name": "storage", "persistentVolumeClaim": None, "emptyDir": {}}]), f"{POD}.volumes",
    ),
    "account of another run": (pod(serviceAccountName="other"), f"{POD}.serviceAccountName"),
    "list item without its key": (pod(containers=[{"image": "x"}]), f"{POD}.containers[0]"),
    "patch of a kind that is not there": ({"Namespace": {"metadata": {}}}, "cluster.kubernetes.patches.Namespace"),
    "control character in env": (container(env=[{"name": "A", "value": "b\0"}]), f"{C0}.env[17].value"),
    "control character in an annotation": (
        {"Job": {"metadata": {"annotations": {"a": "\x1b"}}}}, "Job.metadata.annotations.a",
    ),
    "limit of failed pods above 32 bits": (job(backoffLimit=2**31), "Job.spec.backoffLimit"),
    "time to live above 32 bits": (job(ttlSecondsAfterFinished=2**31), "Job.spec.ttlSecondsAfterFinished"),
    "deadline above 64 bits": (job(activeDeadlineSeconds=2**63), "Job.spec.activeDeadlineSeconds"),
    "more pods than indices allow": (job(parallelism=100_001, completions=100_001), "Job.spec.parallelism"),
    "port above all": (container(ports=[{"containerPort": 65536}]), f"{C0}.ports[1].containerPort"),
    "image that no registry has": (container(image="Nvrx:1"), f"{C0}.image"),
    "mount over the image": (
        container(volumeMounts=[{"mountPath": "/usr", "name": "shm"}]), f"{C0}.volumeMounts[4].mountPath",
    ),
    "mount twice, written in two ways": (
        container(volumeMounts=[{"mountPath": "/tmp/", "name": "shm"}]), f"{C0}.volumeMounts[4].mountPath",
    ),
    "mount in the recipe": (
        container(volumeMounts=[{"mountPath": "/etc/nvrx/x", "name": "shm"}]), f"{C0}.volumeMounts[4].mountPath",
    ),
    "another recipe": ({"ConfigMap": {"data": {"recipe.yaml": "name: x"}}}, "ConfigMap.data.recipe.yaml"),
    "another recipe in bytes": ({"ConfigMap": {"binaryData": {"recipe.yaml": "bg=="}}}, "ConfigMap.data.recipe.yaml"),
    "recipe of another key": (
        pod(volumes=[{"name": "recipe", "configMap": {"items": [{"key": "more", "path": "recipe.yaml"}]}}]),
        f"{C0}.volumeMounts",
    ),
    "recipe of another volume": (
        container(volumeMounts=[{"mountPath": "/etc/nvrx", "name": "storage"}]), f"{C0}.volumeMounts",
    ),
    "command on another recipe": (container(command=["nvrx-run", "/shared/recipe.yaml"]), f"{C0}.command"),
    "command that overrides the recipe": (container(args=["--set", "training.steps=1"]), f"{C0}.command"),
    "no container that trains": (
        pod(containers=[{"name": "trainer", "$patch": "delete"}, {"name": "x", "image": "y"}]), f"{POD}.containers",
    ),
    "recipe too large": ({"ConfigMap": {"data": {"more": "x" * 2**20}}}, "ConfigMap.data"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_invalid_object_is_refused_with_its_path(case: str) -> None:
    patches, path = INVALID[case]
    recipe = on_cluster(nodes=2, cluster={"kubernetes": {"patches": patches}})
    with pytest.raises(ManifestErrors) as caught:
        manifest_objects(recipe)
    paths = [finding.path for finding in caught.value.findings]
    assert path in paths, str(caught.value)
    assert path in str(caught.value)


def test_the_same_objects_without_a_patch_are_accepted() -> None:
    objects = manifest_objects(on_cluster(nodes=2))
    assert len(objects[-1]["spec"]["template"]["spec"]["containers"][0]["env"]) == 17


def test_a_wrapper_before_the_command_is_accepted() -> None:
    wrapped = container(command=["numactl", "--interleave=all", "nvrx-run", "/etc/nvrx/recipe.yaml"])
    manifest_objects(on_cluster(nodes=2, cluster={"kubernetes": {"patches": wrapped}}))


def test_restricted_level_is_checked_field_by_field() -> None:
    for patch, path in (
        (container(securityContext={"allowPrivilegeEscalation": None}), "allowPrivilegeEscalation"),
        (container(securityContext={"capabilities": {"drop": None}}), "capabilities.drop"),
        (container(securityContext={"runAsUser": 0}), "runAsUser"),
        (pod(securityContext={"runAsNonRoot": None}), "runAsNonRoot"),
        (pod(securityContext={"seccompProfile": None}), "seccompProfile"),
    ):
        kubernetes = {"pod_security": "restricted", "patches": patch}
        with pytest.raises(ManifestErrors, match=path):
            manifest_objects(on_cluster(cluster={"kubernetes": kubernetes}))


def test_every_finding_is_reported_at_once() -> None:
    patches = container(image=None, command=["bash"]) | {"Service": {"spec": {"clusterIP": None}}}
    with pytest.raises(ManifestErrors) as caught:
        manifest_objects(on_cluster(cluster={"kubernetes": {"patches": patches}}))
    assert {finding.path for finding in caught.value.findings} == {
        f"{C0}.image", f"{C0}.command", "Service.spec.clusterIP",
    }  # fmt: skip


def test_recipe_that_says_nothing_of_the_cluster_is_told_what_is_missing() -> None:
    with pytest.raises(ManifestErrors, match=r"cluster\.kubernetes: a manifest needs it"):
        manifest_objects(on_cluster(cluster={"kubernetes": None}))
    with pytest.raises(ManifestErrors, match=r"cluster\.instance_type: a manifest needs"):
        manifest_objects(on_cluster(cluster={"instance_type": None, "processes_per_node": 8}))


def test_table_of_fields_is_that_of_the_newest_bundled_schemas() -> None:
    assert TARGET.read_text() == text(), "run python tests/emit/kubernetes_fields.py"
