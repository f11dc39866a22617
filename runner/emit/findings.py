"""What is wrong with an emitted object, and the error that carries all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import InputError


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One finding.

    Attributes:
        path: a setting of the recipe (`cluster.kubernetes.image`), or a field of an emitted object with its kind in
            front (`Job.spec.template.spec.containers[0].image`).
        message: what is wrong, the value, what to do.
    """

    path: str
    message: str


class ManifestErrors(InputError):
    """Everything that keeps a manifest from being emitted (exit code 2)."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        lines = [f"{item.path}: {item.message}" for item in findings]
        super().__init__(
            lines[0] if len(lines) == 1 else "\n  ".join(["no manifest, for these reasons:", *lines])
        )
        self.findings = tuple(findings)
