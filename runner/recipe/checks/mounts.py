"""R728, R729: what is mounted where in the pods, and where the run's state then lies."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from runner.recipe.checks.rule import Report, rule
from runner.recipe.mounts import OWN, Mount, clean, conflicts, innermost, is_below, sealed_volumes

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_K = "cluster.kubernetes"


@rule("R728")
def state_lies_on_shared_storage(recipe: Recipe, report: Report) -> None:
    """In a pod, the run's folder and the checkpoints lie below the storage's mount path (relative paths do), and on
    nothing else that is mounted there."""
    k = recipe.cluster.kubernetes
    if k is None:
        return
    storage = k.storage.mount_path
    by_path = {clean(mount.path): setting for setting, mount in reversed(_mounts(k))}
    for path, folder in (
        ("output.folder", recipe.output.folder or f"runs/{recipe.name}"),
        ("checkpoint.folder", recipe.checkpoint.folder),
    ):
        if folder is None:
            continue
        if folder.startswith("~") or ".." in folder.split("/"):
            report.add(
                path, f"{folder} is not below the shared storage in a pod", f"use a path below {storage}"
            )
            continue
        place = posixpath.join(storage, folder)
        if not is_below(clean(place), clean(storage)):
            report.add(
                path,
                f"{folder} is not below {storage}, so it would vanish with the pod",
                f"use {storage}/... or a relative path",
                also=f"{_K}.storage.mount_path",
            )
        elif (inner := innermost(place, by_path)) not in (None, clean(storage)):
            report.add(
                path,
                f"{place} lies on what is mounted at {inner}, not on the shared storage",
                f"use a path of {storage} where nothing else is mounted, or mount that elsewhere",
                also=by_path[inner or ""],
            )


@rule("R729")
def mounts_do_not_collide(recipe: Recipe, report: Report) -> None:
    """Each mount path is used once, hides nothing that the pod needs, and leaves the run's own folders alone.

    A volume at /usr would hide the image's programs, one at /etc its accounts. Nothing can be mounted in the recipe's
    volume, in shared memory or in a ConfigMap's or Secret's volume, nor in the folder of the run or of its
    checkpoints, parts of which would then lie elsewhere.
    """
    k = recipe.cluster.kubernetes
    if k is None:
        return
    named = _mounts(k)
    mounts = [*OWN, *(mount for _, mount in named)]
    for index, message, other in conflicts(mounts):
        if index < len(OWN):
            continue
        first = None if other is None or other < len(OWN) else named[other - len(OWN)][0]
        report.add(named[index - len(OWN)][0], message, "use another path, such as /data", also=first)
    storage = k.storage.mount_path
    run = recipe.output.folder or f"runs/{recipe.name}"
    state = [clean(posixpath.join(storage, folder)) for folder in (run, recipe.checkpoint.folder) if folder]
    for setting, mount in named:
        inside = next((folder for folder in state if is_below(clean(mount.path), folder)), None)
        if inside is not None and clean(mount.path) != clean(storage):
            report.add(setting, f"{mount.path} lies in {inside}, a folder of the run", "use another path")


def _mounts(kubernetes: Any) -> list[tuple[str, Mount]]:
    """The recipe's own mounts, by setting; what is no path is the emission's to refuse."""
    mounts = [(f"{_K}.storage.mount_path", Mount(kubernetes.storage.mount_path))]
    if kubernetes.local_storage is not None:
        mounts.append((f"{_K}.local_storage.mount_path", Mount(kubernetes.local_storage.mount_path)))
    sealed = sealed_volumes(kubernetes.volumes)
    for index, item in enumerate(kubernetes.volume_mounts):
        path = item.get("mountPath")
        if isinstance(path, str) and path.startswith("/"):
            mounts.append((f"{_K}.volume_mounts[{index}]", Mount(path, str(item.get("name")) in sealed)))
    return mounts
