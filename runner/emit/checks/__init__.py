"""What an API server refuses and a schema does not see, looked for in the objects as sent, patches included.

Each check has the rule of the API server (Kubernetes 1.28 to 1.37) behind it, or a way in which pods have failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.emit.checks import jobs, links, metadata, pods, recipe, resources, security, structure
from runner.emit.findings import Finding


def check_objects(
    objects: Sequence[dict[str, Any]], *, level: str, text: str, program: str = "nvrx-run"
) -> list[Finding]:
    """Everything that is wrong with the objects of one manifest.

    Args:
        objects: as they will be sent.
        level: Pod Security level of the namespace.
        text: the recipe, as it was emitted.
        program: what the pods start on it; those of `nvrx-run` look for each other.
    """
    broken = [finding for item in objects for finding in structure.check(item)]
    if broken:
        return broken  # the other checks take the shape for granted
    findings: list[Finding] = []
    for item in objects:
        findings += metadata.check(item)
        if item["kind"] == "Job":
            findings += jobs.check(item)
            findings += pods.check(item)
            findings += resources.check(item)
            findings += security.check(item, level)
    findings += recipe.check(objects, text, program)
    findings += links.check(objects, distributed=program == "nvrx-run")
    return list(dict.fromkeys(findings))
