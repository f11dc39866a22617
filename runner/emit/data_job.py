"""The data step as a Job: `nvrx-data` on the same recipe, storage and image, on any node, with no GPU."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from runner import __version__
from runner.emit.checks import check_objects
from runner.emit.environment import SCRATCH, secret_entries
from runner.emit.findings import ManifestErrors
from runner.emit.manifest import kubernetes_section, patched, removal, shared_objects
from runner.emit.names import RECIPE_FILE, RECIPE_FOLDER, Names, make_names
from runner.emit.pod import confined_container, confined_pod, volume_claim
from runner.emit.policy import CONTAINER, failure_policy
from runner.emit.recipe_text import recipe_text
from runner.emit.yaml_text import documents

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe

_CPU, _MEMORY = "4", "16Gi"
_FAILED_PODS = 6  # a hub that is down for longer than the step's own patience


def emit_data_job(recipe: Recipe) -> str:
    """The manifest as text. Apply it, wait for the Job to complete, then apply the run's own.

    Raises:
        ManifestErrors: what the recipe lacks for it, or the objects would be refused for.
    """
    objects = data_job_objects(recipe)
    name, namespace = (objects[-1]["metadata"][field] for field in ("name", "namespace"))
    return (
        f"# {name}: made by nvrx-run {__version__} --emit-data-job; do not edit, change the recipe.\n"
        f"# Start: kubectl apply -f FILE\n"
        f"# Wait:  kubectl -n {namespace} wait --for=condition=complete --timeout=-1s job/{name}\n"
        + removal(objects)
        + documents(objects)
    )


def data_job_objects(recipe: Recipe) -> list[dict[str, Any]]:
    """The objects, the Job last: one pod, whose name changes with the recipe.

    Raises:
        ManifestErrors: see `emit_data_job`.
    """
    kubernetes = kubernetes_section(recipe)
    mounted = recipe_text(recipe, folder=kubernetes.storage.mount_path)
    draft = _objects(kubernetes, _named(recipe, "0" * 64), mounted)
    text = json.dumps(draft, sort_keys=True, ensure_ascii=True)
    objects = _objects(kubernetes, _named(recipe, hashlib.sha256(text.encode()).hexdigest()), mounted)
    findings = check_objects(objects, level=kubernetes.pod_security, text=mounted, program="nvrx-data")
    if findings:
        raise ManifestErrors(findings)
    return objects


def _named(recipe: Recipe, fingerprint: str) -> Names:
    names = make_names(recipe, fingerprint)
    stem, _, digest = names.job.rpartition("-")
    return Names(run=names.run, job=f"{stem[:40].rstrip('-')}-data-{digest}")


def _objects(kubernetes: KubernetesSection, names: Names, mounted: str) -> list[dict[str, Any]]:
    objects, labels = shared_objects(kubernetes, names, mounted, "data")
    return patched([*objects, _job(kubernetes, names, labels)], kubernetes, skip=("Job", "Service"))


def _job(kubernetes: KubernetesSection, names: Names, labels: dict[str, str]) -> dict[str, Any]:
    mount = kubernetes.storage.mount_path
    env: list[dict[str, Any]] = [
        {"name": name, "value": value}
        for name, value in {
            "PYTHONSAFEPATH": "1",
            "HOME": SCRATCH,
            "USER": "nvrx",
            "XDG_CACHE_HOME": f"{SCRATCH}/cache",
            "HF_HOME": f"{mount}/.cache/huggingface",  # where the run's pods look
        }.items()
    ]
    env += secret_entries(kubernetes)
    spec: dict[str, Any] = {
        **confined_pod(kubernetes, names),
        "containers": [
            {
                "name": CONTAINER,
                "image": kubernetes.image,
                "imagePullPolicy": kubernetes.image_pull_policy,
                "command": ["nvrx-data", f"{RECIPE_FOLDER}/{RECIPE_FILE}"],
                "workingDir": mount,
                "env": env,
                "resources": {"requests": {"cpu": _CPU, "memory": _MEMORY}, "limits": {"memory": _MEMORY}},
                "securityContext": confined_container([]),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "recipe", "mountPath": RECIPE_FOLDER, "readOnly": True},
                    {"name": "storage", "mountPath": mount},
                    {"name": "scratch", "mountPath": SCRATCH},
                ],
            }
        ],
        "volumes": [
            {"name": "recipe", "configMap": {"name": names.job}},
            {"name": "storage", "persistentVolumeClaim": {"claimName": volume_claim(kubernetes, names)}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    if kubernetes.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in kubernetes.image_pull_secrets]
    if kubernetes.zone is not None:
        spec["nodeSelector"] = {"topology.kubernetes.io/zone": kubernetes.zone}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": names.job, "namespace": kubernetes.namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": _FAILED_PODS,
            "podFailurePolicy": failure_policy(),
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 7 * 86400,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
