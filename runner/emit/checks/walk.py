"""Ways into an object, and what a value must look like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"  # of a subdomain: only the whole has a longest length
_SUBDOMAIN = rf"{_PART}(?:\.{_PART})*"
DNS_LABEL = re.compile(_LABEL)
DNS_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_SUBDOMAIN}")
SERVICE_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(rf"(?:{_NAME})?")
QUALIFIED = re.compile(rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN}/)?{_NAME}")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")

POD = "Job.spec.template.spec"


def pod_spec(job: dict[str, Any]) -> dict[str, Any]:
    """The pod's specification inside a Job."""
    return job["spec"]["template"]["spec"]


def containers(job: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container with its path, init containers included."""
    spec = pod_spec(job)
    for field in ("initContainers", "containers"):
        for index, item in enumerate(spec.get(field) or []):
            yield f"{POD}.{field}[{index}]", item
