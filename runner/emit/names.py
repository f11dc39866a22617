"""Names, labels and environment names that the emitted objects share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


LEADER = "NVRX_RUN_LEADER"  # environment: name of node 0, as the other nodes resolve it
JOB = "NVRX_RUN_JOB"  # environment: name of this job, which keeps the rendezvous of different jobs apart
RUN_LABEL = "nvrx-run/run"
PART_LABEL = "nvrx-run/part"  # `train` or `data`: a finished data job stays for a week beside the run
COMMAND_ANNOTATION = "nvrx-run/launcher-command"
JOB_LABEL = "batch.kubernetes.io/job-name"
RECIPE_FOLDER = "/etc/nvrx"
RECIPE_FILE = "recipe.yaml"
_LONGEST_HOSTNAME = 63
_DIGITS_OF_FINGERPRINT = 8


def ports(recipe: Recipe) -> dict[str, int]:
    """Ports that a pod serves, by name; not that of the ranks' own store, another one at each start."""
    metrics = recipe.output.live.prometheus_port
    return {"rendezvous": recipe.cluster.rendezvous_port} | ({} if metrics is None else {"metrics": metrics})


@dataclass(frozen=True)
class Names:
    """Names of one emission.

    Attributes:
        run: stable part: storage and service account keep it when the recipe changes.
        job: changes with the content, since a Job cannot be altered; names Job, Service and ConfigMap.
    """

    run: str
    job: str

    @property
    def leader(self) -> str:
        """DNS name of node 0, as the pods resolve it within their namespace."""
        return f"{self.job}-0.{self.job}"


def make_names(recipe: Recipe, fingerprint: str) -> Names:
    """Names that fit every limit: host names have 63 characters for job, dash and index; Services begin with a letter.

    A long run name is cut in the Job's name; the fingerprint keeps it apart from others.
    """
    run = recipe.name if recipe.name[0].isalpha() else f"run-{recipe.name}"
    digest = fingerprint[:_DIGITS_OF_FINGERPRINT]
    room = _LONGEST_HOSTNAME - len(str(recipe.cluster.nodes - 1)) - len(digest) - 2
    return Names(run=run, job=f"{run[:room].rstrip('-')}-{digest}")
