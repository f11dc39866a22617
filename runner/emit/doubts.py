"""What the cluster of a recipe would never start, though nothing about it is wrong: examples that nobody filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

EXAMPLE_FILE_SYSTEM = "fs-0123456789abcdef0"
"""Id of no file system: what documentation, the shipped recipes and manifests/cluster/ write."""


def doubts(recipe: Recipe) -> list[str]:
    """What to tell who emits objects for a cluster; a line each, with the setting first."""
    kubernetes = recipe.cluster.kubernetes
    if kubernetes is None:
        return []
    found = []
    storage = kubernetes.storage
    if storage.source == "fsx" and EXAMPLE_FILE_SYSTEM in (
        storage.file_system_id,
        storage.dns_name.partition(".")[0],
    ):
        found.append(
            f"cluster.kubernetes.storage: {EXAMPLE_FILE_SYSTEM} is the example of the documentation, and no pod would "
            "get its volume; name your own (of a shipped recipe: set FSX_ID, FSX_DNS and FSX_MOUNT in the environment)"
        )
    if "/" not in kubernetes.image and kubernetes.image_pull_policy != "Never":
        found.append(
            f"cluster.kubernetes.image: {kubernetes.image} names no registry, so nodes that do not have it ask Docker "
            "Hub; name where you pushed it (of a shipped recipe: set IMAGE in the environment)"
        )
    return found
