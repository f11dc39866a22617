"""`emit_manifest`: a recipe as the Kubernetes objects that run it, checked, in a stable order."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import __version__
from runner.emit.checks import check_objects
from runner.emit.findings import Finding, ManifestErrors
from runner.emit.job import job, service
from runner.emit.launcher import launcher_argv
from runner.emit.names import (
    COMMAND_ANNOTATION,
    PART_LABEL,
    RECIPE_FILE,
    RECIPE_FOLDER,
    RUN_LABEL,
    Names,
    make_names,
)
from runner.emit.nvrx_versions import NEWEST
from runner.emit.patch import apply_patch
from runner.emit.recipe_text import recipe_text
from runner.emit.sizing import PodSize, pod_size
from runner.emit.surroundings import fsx_objects, namespace, recipe_map, service_account
from runner.emit.yaml_text import documents

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe


def emit_manifest(recipe: Recipe) -> str:
    """The manifest as text for `kubectl apply -f -`.

    Raises:
        ManifestErrors: everything that the recipe lacks for it, or that the objects would be refused for.
    """
    objects = manifest_objects(recipe)
    return _header(recipe, objects) + documents(objects)


def manifest_objects(recipe: Recipe) -> list[dict[str, Any]]:
    """The objects in the order in which they are created, the Job last.

    The Job's name ends in a fingerprint of everything that is emitted, since a Job cannot be changed once it is there:
    a changed recipe makes another Job, the same recipe the same one.

    Raises:
        ManifestErrors: see `emit_manifest`.
    """
    kubernetes = kubernetes_section(recipe)
    size = pod_size(recipe, kubernetes)
    mounted = recipe_text(recipe, folder=kubernetes.storage.mount_path)
    draft = _objects(recipe, kubernetes, make_names(recipe, "0" * 64), size, mounted)
    text = json.dumps(draft, sort_keys=True, ensure_ascii=True)
    names = make_names(recipe, hashlib.sha256(text.encode()).hexdigest())
    objects = _objects(recipe, kubernetes, names, size, mounted)
    findings = check_objects(objects, level=kubernetes.pod_security, text=mounted)
    if findings:
        raise ManifestErrors(findings)
    return objects


def kubernetes_section(recipe: Recipe) -> KubernetesSection:
    """`cluster.kubernetes`.

    Raises:
        ManifestErrors: the recipe has none.
    """
    kubernetes = recipe.cluster.kubernetes
    if kubernetes is None:
        raise ManifestErrors(
            [Finding("cluster.kubernetes", "a manifest needs it: give at least `image` and `storage`")]
        )
    return kubernetes


def _objects(
    recipe: Recipe, kubernetes: KubernetesSection, names: Names, size: PodSize, mounted: str
) -> list[dict[str, Any]]:
    objects, labels = shared_objects(kubernetes, names, mounted, "train")
    command = {COMMAND_ANNOTATION: _command(recipe, names)}
    objects += [
        service(recipe, kubernetes, names, labels),
        job(recipe, kubernetes, names, size, labels, command),
    ]
    return patched(objects, kubernetes)


def shared_objects(
    kubernetes: KubernetesSection, names: Names, mounted: str, part: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What every Job of a run stands on, the recipe's text `mounted` included, and the labels of its own objects.

    Args:
        part: tells the Jobs of a run apart, `train` or `data`. What they share does not have it as a label: each
            would take it for its own.
    """
    labels = dict(kubernetes.labels) | {
        "app.kubernetes.io/name": "nvrx-run",
        "app.kubernetes.io/instance": names.run,
        RUN_LABEL: names.run,
    }
    objects = [namespace(kubernetes, labels)] if kubernetes.create_namespace else []
    if kubernetes.storage.source == "fsx":
        objects += fsx_objects(kubernetes.storage, kubernetes, names, labels)
    if kubernetes.service_account is None:
        objects.append(service_account(kubernetes, names, labels))
    labels = labels | {PART_LABEL: part}
    return [*objects, recipe_map(mounted, kubernetes, names, labels)], labels


def patched(
    objects: list[dict[str, Any]], kubernetes: KubernetesSection, *, skip: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The objects with the recipe's patches.

    Args:
        objects: as emitted.
        kubernetes: holds the patches.
        skip: kinds whose patches are for another Job's objects.

    Raises:
        ManifestErrors: a patch of a kind that is not emitted, or one that does not fit.
    """
    unused = kubernetes.patches.keys() - {item["kind"] for item in objects} - set(skip)
    if unused:
        raise ManifestErrors(
            [
                Finding(f"cluster.kubernetes.patches.{kind}", "no object of this kind is emitted")
                for kind in sorted(unused)
            ]
        )
    return [
        item if item["kind"] in skip else apply_patch(item, kubernetes.patches.get(item["kind"], {}))
        for item in objects
    ]


def _command(recipe: Recipe, names: Names) -> str:
    """What the pod of index 0 starts, for people to read; the pod itself follows the NVRx in its image."""
    argv = launcher_argv(
        recipe,
        recipe_path=Path(RECIPE_FOLDER) / RECIPE_FILE,
        nvrx_version=recipe.cluster.nvrx_version or NEWEST,
        rendezvous_endpoint=f"{names.leader}:{recipe.cluster.rendezvous_port}",
        local_address=names.leader,
        run_id=names.job,
        bin_dir=Path(),
        torchrun_flags=frozenset(),
    )
    return shlex.join(argv)


def removal(objects: Sequence[dict[str, Any]]) -> str:
    """What deleting a manifest takes along, as the lines of its header."""
    kinds = {item["kind"]: item for item in objects}
    lines = ["# Remove: kubectl delete -f FILE"]
    if (namespace := kinds.get("Namespace")) is not None:
        name = namespace["metadata"]["name"]
        lines += [
            f"#         deletes the namespace {name} with ALL that is in it: other runs, Secrets, and claims,",
            "#         whose data go too where the reclaim policy of their volume is Delete",
        ]
    volume = kinds.get("PersistentVolume")
    policy = volume["spec"].get("persistentVolumeReclaimPolicy", "Retain") if volume else "Retain"
    if policy != "Retain":
        lines.append(
            f"#         the data on the shared storage go too: the reclaim policy of its volume is {policy}"
        )
    elif volume is not None or namespace is None:
        lines.append("#         the data on the shared storage stay")
    return "\n".join(lines) + "\n"


def _header(recipe: Recipe, objects: Sequence[dict[str, Any]]) -> str:
    kubernetes = recipe.cluster.kubernetes
    where = f"-n {kubernetes.namespace} " if kubernetes else ""
    name = objects[-1]["metadata"]["name"]
    return (
        f"# {name}: made by nvrx-run {__version__} --emit-manifest; do not edit, change the recipe.\n"
        f"# Start:  kubectl apply -f FILE\n"
        f"# Stop:   kubectl {where}delete job,service,configmap -l {RUN_LABEL}={make_names(recipe, '').run}\n"
        f"{removal(objects)}"
        "# A changed recipe makes a Job of another name. Stop the former one first: it holds the run's folder, and\n"
        "# the new one's pods wait for it and fail (where the storage's locks span nodes; elsewhere both write).\n"
    )
