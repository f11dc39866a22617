"""The pod template of the Job: one container, `nvrx-run` on the mounted recipe, no shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.emit.environment import SCRATCH, container_env
from runner.emit.names import RECIPE_FILE, RECIPE_FOLDER, Names, ports
from runner.emit.placement import affinity, node_selector, pod_annotations, tolerations
from runner.emit.policy import CONTAINER, grace_seconds
from runner.emit.sizing import PodSize
from runner.recipe.instances import GIB, LOCAL_HEADROOM, MIB

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe


def pod_template(
    recipe: Recipe, kubernetes: KubernetesSection, names: Names, size: PodSize, labels: dict[str, str]
) -> dict[str, Any]:
    """The Job's `template`."""
    annotations = pod_annotations(recipe, kubernetes) | dict(kubernetes.annotations)
    spec: dict[str, Any] = {
        **confined_pod(kubernetes, names),
        "subdomain": names.job,
        "terminationGracePeriodSeconds": grace_seconds(recipe, kubernetes),
        "priorityClassName": kubernetes.priority_class,
        "nodeSelector": node_selector(recipe, kubernetes),
        "tolerations": tolerations(kubernetes, size),
        "affinity": affinity(recipe, kubernetes, names),
        "imagePullSecrets": [{"name": name} for name in kubernetes.image_pull_secrets],
        "containers": [_container(recipe, kubernetes, names, size)],
        "volumes": _volumes(kubernetes, names, size),
    }
    metadata = {"labels": labels, "annotations": annotations}
    return {"metadata": _filled(metadata), "spec": _filled(spec)}


def _container(recipe: Recipe, kubernetes: KubernetesSection, names: Names, size: PodSize) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": kubernetes.image,
        "imagePullPolicy": kubernetes.image_pull_policy,
        "command": ["nvrx-run", f"{RECIPE_FOLDER}/{RECIPE_FILE}"],
        "workingDir": kubernetes.storage.mount_path,
        "env": container_env(recipe, kubernetes, names, size),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports(recipe).items()
        ],
        "resources": _resources(size),
        "securityContext": confined_container(["IPC_LOCK"] if kubernetes.ipc_lock else []),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(kubernetes),
    }


def confined_pod(kubernetes: KubernetesSection, names: Names) -> dict[str, Any]:
    """Fields of every pod: never restarted in place, an ordinary user, an account without a token."""
    return {
        "restartPolicy": "Never",
        "serviceAccountName": kubernetes.service_account or names.run,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": kubernetes.run_as_user,
            "runAsGroup": kubernetes.run_as_group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def confined_container(capabilities: list[str]) -> dict[str, Any]:
    """Security context of every container; `capabilities` are all that it has."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]} | ({"add": capabilities} if capabilities else {}),
    }


def _resources(size: PodSize) -> dict[str, Any]:
    """Devices, huge pages and memory with request = limit; CPU without a limit, which would only throttle.

    Past its limit of ephemeral storage a pod is evicted, and logs and /tmp count toward it as the local storage does.
    """
    both: dict[str, Any] = {"memory": size.memory}
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if size.gpus:
        both["nvidia.com/gpu"] = size.gpus
    if size.efa:
        both["vpc.amazonaws.com/efa"] = size.efa
        both["hugepages-2Mi"] = f"{size.hugepages_mib}Mi"
    if size.local_bytes:
        requests["ephemeral-storage"] = quantity(size.local_bytes)
        limits["ephemeral-storage"] = quantity(size.local_bytes + LOCAL_HEADROOM)
    return {"requests": {"cpu": size.cpu, **both, **requests}, "limits": {**both, **limits}}


def _volumes(kubernetes: KubernetesSection, names: Names, size: PodSize) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "recipe", "configMap": {"name": names.job}},
        {"name": "storage", "persistentVolumeClaim": {"claimName": volume_claim(kubernetes, names)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(size.shm_bytes)}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if kubernetes.local_storage is not None:
        volumes.append({"name": "local", "emptyDir": {"sizeLimit": quantity(size.local_bytes)}})
    return volumes + [dict(volume) for volume in kubernetes.volumes]


def volume_claim(kubernetes: KubernetesSection, names: Names) -> str:
    """Name of the claim for the shared storage: the recipe's, or that of the emitted volume."""
    storage = kubernetes.storage
    return f"{names.run}-storage" if storage.source == "fsx" else storage.claim_name


def _mounts(kubernetes: KubernetesSection) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "recipe", "mountPath": RECIPE_FOLDER, "readOnly": True},
        {"name": "storage", "mountPath": kubernetes.storage.mount_path},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": SCRATCH},
    ]
    if kubernetes.local_storage is not None:
        mounts.append({"name": "local", "mountPath": kubernetes.local_storage.mount_path})
    return mounts + [dict(mount) for mount in kubernetes.volume_mounts]


def quantity(size: int) -> str:
    """Bytes as the shortest binary quantity that is exact, or rounded up to a whole Mi."""
    if size % GIB == 0:
        return f"{size // GIB}Gi"
    return f"{-(-size // MIB)}Mi"


def _filled(mapping: dict[str, Any]) -> dict[str, Any]:
    """Without what is not set."""
    return {key: value for key, value in mapping.items() if value not in (None, {}, [])}
