"""Strategic merge patches, as `kubectl patch` applies them, for the kinds that the product emits.

Mappings merge key by key and null removes a key. A list replaces the other list, except where Kubernetes merges it by
a key of its items. `$patch: replace` and `$patch: delete` work in mappings and in items of merged lists.
"""

from __future__ import annotations

import copy
from typing import Any

from runner.emit.findings import Finding, ManifestErrors

_DIRECTIVE = "$patch"
# Field name -> the key that tells the items of the list apart. A field of the same name means the same in every kind
# that is emitted, but for `ports`.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "secrets": "name",
    "ownerReferences": "uid",
}
_PORT_KEYS = {"Job": "containerPort", "Service": "port"}


def apply_patch(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """`target` with `patch` merged into it; neither is altered.

    Raises:
        ManifestErrors: a list item without its merge key, or an unknown directive.
    """
    kind = str(target.get("kind"))
    return _mapping(copy.deepcopy(target), copy.deepcopy(patch), kind, kind)


def _mapping(target: dict[str, Any], patch: dict[str, Any], kind: str, path: str) -> dict[str, Any]:
    directive = patch.pop(_DIRECTIVE, "merge")
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    if directive != "merge":
        raise ManifestErrors(
            [Finding(f"{path}.{_DIRECTIVE}", f"{directive!r}: use merge, replace or delete")]
        )
    for key, value in patch.items():
        where = f"{path}.{key}"
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            below = target.get(key)
            target[key] = _mapping(below if isinstance(below, dict) else {}, value, kind, where)
        elif isinstance(value, list) and isinstance(target.get(key), list) and _merge_key(kind, key):
            target[key] = _list(target[key], value, _merge_key(kind, key) or "", kind, where)
        else:
            target[key] = value
    return target


def _merge_key(kind: str, field: str) -> str | None:
    return _PORT_KEYS.get(kind) if field == "ports" else _MERGE_KEYS.get(field)


def _list(target: list[Any], patch: list[Any], key: str, kind: str, path: str) -> list[Any]:
    if {_DIRECTIVE: "replace"} in patch:
        return [item for item in patch if item != {_DIRECTIVE: "replace"}]
    result = list(target)
    added = []
    for index, item in enumerate(patch):
        where = f"{path}[{index}]"
        if not isinstance(item, dict) or key not in item:
            raise ManifestErrors([Finding(where, f"items of this list are told apart by `{key}`: add it")])
        at = next(
            (i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None
        )
        if item.get(_DIRECTIVE) == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            added.append(_mapping({}, item, kind, where))
        else:
            result[at] = _mapping(result[at], item, kind, where)
    return result + added
