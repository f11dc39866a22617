"""The Indexed Job and its headless Service."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from runner.emit.names import JOB_LABEL, Names, ports
from runner.emit.placement import KUEUE_QUEUE
from runner.emit.pod import pod_template
from runner.emit.policy import backoff_limit, failure_policy
from runner.emit.sizing import PodSize

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe


def job(
    recipe: Recipe,
    kubernetes: KubernetesSection,
    names: Names,
    size: PodSize,
    labels: dict[str, str],
    annotations: dict[str, str],
) -> dict[str, Any]:
    """One pod a node; a pod's index is its node rank."""
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": recipe.cluster.nodes,
        "parallelism": recipe.cluster.nodes,
        "backoffLimit": backoff_limit(recipe, kubernetes),
        "podFailurePolicy": failure_policy(),
        "podReplacementPolicy": "Failed",  # the old pod must be gone before its index is used again
    }
    if kubernetes.active_deadline is not None:
        spec["activeDeadlineSeconds"] = max(1, math.floor(kubernetes.active_deadline.total_seconds()))
    if kubernetes.ttl_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = math.ceil(kubernetes.ttl_after_finished.total_seconds())
    spec["template"] = pod_template(recipe, kubernetes, names, size, labels)
    queue = {KUEUE_QUEUE: kubernetes.kueue_queue} if kubernetes.kueue_queue is not None else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job,
            "namespace": kubernetes.namespace,
            "labels": labels | queue,
            "annotations": annotations | dict(kubernetes.annotations),
        },
        "spec": spec,
    }


def service(
    recipe: Recipe, kubernetes: KubernetesSection, names: Names, labels: dict[str, str]
) -> dict[str, Any]:
    """Gives each pod a DNS name, from before it is ready: the pods look for each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.job, "namespace": kubernetes.namespace, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: names.job},
            "ports": [
                {"name": name, "port": port, "protocol": "TCP"} for name, port in ports(recipe).items()
            ],
        },
    }
