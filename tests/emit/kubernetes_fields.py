"""Makes `runner/emit/kubernetes_fields.json`: the fields of the emitted kinds, from the newest bundled schemas.

Run as a script after an update of kubernetes-validate. A field's type is `s` text, `i` integer of 32 bits, `l` of 64,
`n` number, `b` truth value, `q` integer or text, `?` anything, the name of another entry, `[` + type for a list, `{` +
type for a mapping.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate

TARGET = Path(__file__).resolve().parents[2] / "runner" / "emit" / "kubernetes_fields.json"
_KINDS = {
    "ConfigMap": "core.v1", "Job": "batch.v1", "Namespace": "core.v1", "PersistentVolume": "core.v1",
    "PersistentVolumeClaim": "core.v1", "Service": "core.v1", "ServiceAccount": "core.v1",
}  # fmt: skip
_SIMPLE = {"string": "s", "integer": "i", "number": "n", "boolean": "b"}


def build() -> dict[str, Any]:
    """`version`, and `types`: name -> field -> type."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    newest = max(
        folder.glob("v*-local"), key=lambda path: [int(n) for n in path.name[1:].split("-")[0].split(".")]
    )
    definitions = json.loads((newest / "_definitions.json").read_text())
    definitions = definitions.get("definitions") or definitions["$defs"]
    types: dict[str, Any] = {}

    def short(reference: str) -> str:
        return reference.rsplit("/", 1)[-1].removeprefix("io.k8s.").removeprefix("api.")

    def kind_of(schema: dict[str, Any]) -> str:
        if "$ref" in schema:
            name = short(schema["$ref"])
            full = definitions[schema["$ref"].rsplit("/", 1)[-1]]
            if "properties" in full:
                add(name, full)
                return name
            if name.endswith(("Quantity", "IntOrString")):
                return "q"
            return kind_of(full) if full.get("type") else "?"
        allowed = schema.get("type")
        allowed = [item for item in allowed if item != "null"] if isinstance(allowed, list) else [allowed]
        if allowed == ["array"]:
            return "[" + kind_of(schema["items"])
        if allowed == ["object"]:
            more = schema.get("additionalProperties")
            return "{" + kind_of(more) if isinstance(more, dict) else "?"
        if allowed == ["integer"] and schema.get("format") == "int64":
            return "l"
        return _SIMPLE.get(allowed[0], "?") if len(allowed) == 1 else "?"

    def add(name: str, full: dict[str, Any]) -> None:
        if name not in types:
            types[name] = {}
            types[name] = {field: kind_of(schema) for field, schema in sorted(full["properties"].items())}

    for kind, group in _KINDS.items():
        add(f"{group}.{kind}", definitions[f"io.k8s.api.{group}.{kind}"])
        types[kind] = types.pop(f"{group}.{kind}")
        types[kind].pop("status", None)
    return {"version": newest.name[1:].split("-")[0], "types": _reachable(types)}


def _reachable(types: dict[str, Any]) -> dict[str, Any]:
    seen: set[str] = set()
    ahead = list(_KINDS)
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        ahead += [kind.lstrip("[{") for kind in types[name].values() if kind.lstrip("[{") in types]
    return {name: types[name] for name in sorted(seen)}


def text() -> str:
    """The file's content: a line a type."""
    table = build()
    lines = [
        f"{json.dumps(name)}:{json.dumps(fields, separators=(',', ':'))}"
        for name, fields in table["types"].items()
    ]
    return f'{{"version":"{table["version"]}","types":{{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    TARGET.write_text(text())
