"""What the Job stands on: namespace, storage, service account, and the recipe itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.emit.names import RECIPE_FILE, Names

if TYPE_CHECKING:
    from runner.recipe.kubernetes import FsxStorage, KubernetesSection


def namespace(kubernetes: KubernetesSection, labels: dict[str, str]) -> dict[str, Any]:
    """The namespace with its Pod Security level."""
    level = kubernetes.pod_security
    security = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": kubernetes.namespace, "labels": labels | security},
    }


def fsx_objects(
    storage: FsxStorage, kubernetes: KubernetesSection, names: Names, labels: dict[str, str]
) -> list[dict[str, Any]]:
    """A static volume for a file system that exists, bound to one claim; deleting both leaves the data alone."""
    claim = f"{names.run}-storage"
    volume = f"{kubernetes.namespace}-{claim}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": labels},
            "spec": {
                "capacity": {"storage": storage.capacity},
                "volumeMode": "Filesystem",
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "mountOptions": ["flock"],
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": kubernetes.namespace,
                    "name": claim,
                },
                "csi": {
                    "driver": "fsx.csi.aws.com",
                    "volumeHandle": storage.file_system_id,
                    "volumeAttributes": {
                        "dnsname": storage.dns_name,
                        "mountname": storage.mount_name,
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": kubernetes.namespace, "labels": labels},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": storage.capacity}},
            },
        },
    ]


def service_account(kubernetes: KubernetesSection, names: Names, labels: dict[str, str]) -> dict[str, Any]:
    """An account with no rights; what it may do in AWS, an annotation or a pod identity association says."""
    metadata: dict[str, Any] = {
        "name": names.run,
        "namespace": kubernetes.namespace,
        "labels": labels,
    }
    if kubernetes.service_account_annotations:
        metadata["annotations"] = dict(kubernetes.service_account_annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def recipe_map(
    text: str, kubernetes: KubernetesSection, names: Names, labels: dict[str, str]
) -> dict[str, Any]:
    """The resolved recipe; it cannot be altered under a running Job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.job, "namespace": kubernetes.namespace, "labels": labels},
        "immutable": True,
        "data": {RECIPE_FILE: text},
    }
