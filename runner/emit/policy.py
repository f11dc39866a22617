"""What Kubernetes does when a pod ends: per recovery layer, from the product's own exit codes.

Pods are never restarted in place (`restartPolicy: Never`): a new pod may land on a sound node, and only so can exit
codes decide. What can be mended inside the pod, the recovery layer has mended before the pod ends.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runner.errors import FINAL, ExitCode
from runner.recipe.derived import pod_restarts
from runner.recipe.layer_settings import ft_launcher

if TYPE_CHECKING:
    from runner.recipe.kubernetes import KubernetesSection
    from runner.recipe.recipe import Recipe

CONTAINER = "trainer"
GRACE_MARGIN = timedelta(seconds=60)  # the supervisor's own end


def backoff_limit(recipe: Recipe, kubernetes: KubernetesSection) -> int:
    """Failed pods before the Job fails."""
    return pod_restarts(recipe)


def grace_seconds(recipe: Recipe, kubernetes: KubernetesSection) -> int:
    """Seconds between SIGTERM and SIGKILL of a pod: longer than the run itself may take to save and stop."""
    grace = kubernetes.grace_period
    if grace is None:
        grace = longest_stop(recipe) + GRACE_MARGIN
    return max(1, math.ceil(grace.total_seconds()))


def longest_stop(recipe: Recipe) -> timedelta:
    """Longest that a run may take to end once it is asked to stop."""
    settings = ft_launcher(recipe)
    launcher = settings.term_timeout if settings is not None else timedelta(0)
    return max(recipe.recovery.stop_timeout, launcher)


def failure_policy() -> dict[str, Any]:
    """First rule that matches decides; what none matches counts toward the limit."""
    return {
        "rules": [
            _on_codes("FailJob", *sorted(FINAL)),
            {
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            _on_codes("Ignore", ExitCode.PREEMPTED),
        ]
    }


def _on_codes(action: str, *codes: ExitCode) -> dict[str, Any]:
    """One rule. The empty list is for schemas up to Kubernetes 1.30, which demand the field; servers never did."""
    values = [int(code) for code in codes]
    on_exit = {"containerName": CONTAINER, "operator": "In", "values": values}
    return {"action": action, "onExitCodes": on_exit, "onPodConditions": []}
