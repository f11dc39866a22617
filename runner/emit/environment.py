"""Environment of the training container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.emit.launcher import launcher_env
from runner.emit.names import JOB, LEADER, Names
from runner.emit.sizing import PodSize

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe

SCRATCH = "/tmp"


def container_env(
    recipe: Recipe, kubernetes: KubernetesSection, names: Names, size: PodSize
) -> list[dict[str, Any]]:
    """Entries of `env`: the node's place, what the layer needs, homes on writable folders, then the user's own."""
    storage = kubernetes.storage.mount_path
    values = {
        LEADER: names.leader,
        JOB: names.job,
        **launcher_env(recipe),
        # The root file system is read-only and the user id has no entry in /etc/passwd.
        "HOME": SCRATCH,
        "USER": "nvrx",
        "LOGNAME": "nvrx",
        "XDG_CACHE_HOME": f"{SCRATCH}/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/cache/inductor",
        "TRITON_CACHE_DIR": f"{SCRATCH}/cache/triton",
        "HF_HOME": f"{storage}/.cache/huggingface",  # fetched once for all nodes and all restarts
    }
    if size.efa:
        values["FI_PROVIDER"] = "efa"
    for name, value in kubernetes.env.items():
        values[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    entries: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    return entries + secret_entries(kubernetes)


def secret_entries(kubernetes: KubernetesSection) -> list[dict[str, Any]]:
    """Entries of `env` that come from Secrets."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
        for name, source in kubernetes.secret_env.items()
    ]
