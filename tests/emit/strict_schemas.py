"""The strict schemas that kubernetes-validate bundles, each read once: the library reads megabytes at every call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

OLDEST = 28


@cache
def schema_versions() -> list[str]:
    """Kubernetes minor versions from 1.28 to the newest that the validator bundles."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = {re.match(r"v1\.(\d+)\.", path.name)[1] for path in folder.iterdir()}  # type: ignore[index]
    return [f"1.{minor}" for minor in sorted(map(int, found)) if minor >= OLDEST]


@cache
def _definitions(version: str) -> Registry[Any]:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    contents = schema_contents(f"{folder}/_definitions.json", version)
    return (Resource.from_contents(contents) @ Registry()).crawl()


@cache
def _validator(version: str, kind: str, group: str) -> jsonschema.Draft202012Validator:
    name = f"kubernetes-json-schema/v{version}.0-local-strict/{kind.lower()}-{group}.json"
    schema = schema_contents(name, version)
    registry = (Resource.from_contents(schema) @ _definitions(version)).crawl()
    return jsonschema.Draft202012Validator(schema, registry=registry)


def strict(objects: Iterable[dict[str, Any]]) -> None:
    """Validate against every bundled schema, unknown fields refused.

    Raises:
        jsonschema.ValidationError: the first that does not pass.
    """
    for item in objects:
        group = item["apiVersion"].replace("/", "-")
        for version in schema_versions():
            _validator(version, item["kind"], group).validate(item)
