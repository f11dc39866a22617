"""The pods run the recipe that was checked: no patch puts another text, mount or command in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.emit.checks.walk import POD, containers, pod_spec
from runner.emit.findings import Finding
from runner.emit.names import RECIPE_FILE, RECIPE_FOLDER
from runner.emit.policy import CONTAINER

_REMEDY = "the pods would not run the recipe that was checked; change the recipe instead"


def check(objects: Sequence[dict[str, Any]], text: str, program: str) -> list[Finding]:
    """What keeps the Job's container from running `program` on `text`.

    Args:
        objects: as they will be sent.
        text: the recipe, as it was emitted.
        program: what the container starts on it.
    """
    by_kind = {item["kind"]: item for item in objects}
    findings: list[Finding] = []
    config = by_kind.get("ConfigMap")
    if config is None:
        return [Finding("ConfigMap", f"missing: {_REMEDY}")]
    if (config.get("data") or {}).get(RECIPE_FILE) != text or RECIPE_FILE in (config.get("binaryData") or {}):
        findings.append(Finding(f"ConfigMap.data.{RECIPE_FILE}", f"patched: {_REMEDY}"))
    volumes = {item.get("name"): item for item in pod_spec(by_kind["Job"]).get("volumes") or []}
    trainers = [(path, item) for path, item in containers(by_kind["Job"]) if item.get("name") == CONTAINER]
    if not trainers:
        findings.append(Finding(f"{POD}.containers", f"no container is called {CONTAINER}: {_REMEDY}"))
    for path, item in trainers:
        words = [*(item.get("command") or []), *(item.get("args") or [])]
        wanted = [program, f"{RECIPE_FOLDER}/{RECIPE_FILE}"]
        if words[-2:] != wanted:
            message = f"{words} does not end in {' '.join(wanted)}: {_REMEDY}"
            findings.append(Finding(f"{path}.command", message))
        mounts = [
            mount for mount in item.get("volumeMounts") or [] if mount.get("mountPath") == RECIPE_FOLDER
        ]
        source = volumes.get(mounts[0].get("name"), {}).get("configMap") if len(mounts) == 1 else None
        if source is None or source.get("name") != config["metadata"]["name"]:
            findings.append(
                Finding(f"{path}.volumeMounts", f"{RECIPE_FOLDER} is not the ConfigMap: {_REMEDY}")
            )
        elif source.get("items") or "subPath" in mounts[0] or "subPathExpr" in mounts[0]:
            message = f"{RECIPE_FOLDER} shows a part of the ConfigMap: {_REMEDY}"
            findings.append(Finding(f"{path}.volumeMounts", message))
    return findings
