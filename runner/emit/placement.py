"""Where the pods may run: node selector, tolerations, affinity, and what queues and autoscalers are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.emit.names import JOB_LABEL, Names
from runner.emit.sizing import PodSize

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection, Topology
    from runner.recipe.recipe import Recipe

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


def node_selector(recipe: Recipe, kubernetes: KubernetesSection) -> dict[str, str]:
    """Labels that a node must have."""
    selector: dict[str, str] = {}
    instance = recipe.cluster.instance_type
    if instance is not None:
        prefix = "ml." if kubernetes.hyperpod else ""
        selector["node.kubernetes.io/instance-type"] = prefix + instance
    if kubernetes.hyperpod:
        selector["sagemaker.amazonaws.com/node-health-status"] = "Schedulable"
    if kubernetes.zone is not None:
        selector[ZONE] = kubernetes.zone
    if kubernetes.node_group is not None:
        selector["eks.amazonaws.com/nodegroup"] = kubernetes.node_group
    return selector | dict(kubernetes.node_selector)


def tolerations(kubernetes: KubernetesSection, size: PodSize) -> list[dict[str, Any]]:
    """Taints to put up with; what is not set is left out, since an empty value is a value."""
    result: list[dict[str, Any]] = []
    if size.gpus:
        result.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    for item in kubernetes.tolerations:
        given = {
            "key": item.key,
            "operator": item.operator,
            "value": item.value,
            "effect": item.effect,
        }
        entry = {key: value for key, value in given.items() if value not in (None, "")}
        if entry not in result:
            result.append(entry)
    return result


def affinity(recipe: Recipe, kubernetes: KubernetesSection, names: Names) -> dict[str, Any] | None:
    """One pod a node, all in one zone, and as close as asked for; nothing for a single node."""
    if recipe.cluster.nodes == 1:
        return None
    near: dict[str, Any] = {}
    required = []
    if kubernetes.zone is None:
        required.append(_term(names, ZONE))  # EFA does not cross zones
    hint = kubernetes.topology if kubernetes.kueue_queue is None else None
    if hint is not None and hint.required:
        required.append(_term(names, hint.label))
    if required:
        near["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if hint is not None and not hint.required:
        near["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "podAffinityTerm": _term(names, hint.label)}
        ]
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(names, HOST)]}
    return ({"podAffinity": near} if near else {}) | {"podAntiAffinity": apart}


def _term(names: Names, topology_key: str) -> dict[str, Any]:
    return {
        "labelSelector": {"matchLabels": {JOB_LABEL: names.job}},
        "topologyKey": topology_key,
    }


def pod_annotations(recipe: Recipe, kubernetes: KubernetesSection) -> dict[str, str]:
    """Annotations of the pods for Karpenter, Kueue and a Prometheus that finds its targets by annotation."""
    result: dict[str, str] = {}
    metrics = recipe.output.live.prometheus_port
    if metrics is not None:
        result |= {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(metrics),
            "prometheus.io/path": "/metrics",
        }
    if kubernetes.karpenter_do_not_disrupt:
        result["karpenter.sh/do-not-disrupt"] = "true"
    if kubernetes.kueue_queue is not None and kubernetes.topology is not None:
        result |= _kueue_topology(kubernetes.topology)
    return result


def _kueue_topology(topology: Topology) -> dict[str, str]:
    kind = "required" if topology.required else "preferred"
    return {f"kueue.x-k8s.io/podset-{kind}-topology": topology.label}
