"""The Job's own fields: indices, failure policy, replacement."""

from __future__ import annotations

from typing import Any

from runner.emit.checks.walk import containers, pod_spec
from runner.emit.findings import Finding
from runner.recipe.quantity import MOST_PODS

_LONGEST_HOSTNAME = 63
_MOST_RULES = 20
_MOST_CODES = 255
_ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")


def check(job: dict[str, Any]) -> list[Finding]:
    """Fields of `Job.spec`."""
    spec, findings = job["spec"], []

    def wrong(path: str, message: str) -> None:
        findings.append(Finding(f"Job.spec.{path}" if path else "Job.spec", message))

    mode, completions = spec.get("completionMode", "NonIndexed"), spec.get("completions")
    if mode not in ("Indexed", "NonIndexed"):
        wrong("completionMode", f"{mode!r}: Indexed or NonIndexed")
    elif mode != "Indexed":
        wrong("completionMode", f"{mode}: the pods would have no index, hence no node rank; use Indexed")
    for field, least in (
        ("completions", 1), ("parallelism", 1), ("backoffLimit", 0), ("activeDeadlineSeconds", 1),
        ("ttlSecondsAfterFinished", 0),
    ):  # fmt: skip
        if field in spec and spec[field] < least:
            wrong(field, f"{spec[field]} is below {least}")
    if completions is not None and completions != spec.get("parallelism"):
        wrong(
            "parallelism",
            f"{spec.get('parallelism')} pods at a time of {completions}: all must run at once to meet",
        )
    if mode == "Indexed" and spec.get("parallelism", 1) > MOST_PODS:
        wrong("parallelism", f"{spec['parallelism']} pods at a time of {MOST_PODS} allowed with indices")
    _name_length(job, wrong)
    if "selector" in spec or spec.get("manualSelector"):
        wrong("selector", "the Job controller makes its own; leave it out")
    if mode != "Indexed" and "backoffLimitPerIndex" in spec:
        wrong("backoffLimitPerIndex", "needs completionMode Indexed")
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        wrong("maxFailedIndexes", "needs backoffLimitPerIndex")
    restart = pod_spec(job).get("restartPolicy")
    if restart not in ("Never", "OnFailure"):
        wrong("template.spec.restartPolicy", f"{restart!r}: a Job takes Never or OnFailure")
    replacement = spec.get("podReplacementPolicy")
    if replacement not in (None, "Failed", "TerminatingOrFailed"):
        wrong("podReplacementPolicy", f"{replacement!r}: Failed or TerminatingOrFailed")
    if "podFailurePolicy" in spec:
        if restart != "Never":
            wrong("template.spec.restartPolicy", f"{restart!r}: podFailurePolicy needs Never")
        if replacement not in (None, "Failed"):
            wrong("podReplacementPolicy", f"{replacement!r}: podFailurePolicy needs Failed")
        _policy(job, wrong)
    return findings


def _name_length(job: dict[str, Any], wrong: Any) -> None:
    name, completions = job["metadata"].get("name"), job["spec"].get("completions")
    if isinstance(name, str) and completions:
        longest = len(name) + 1 + len(str(completions - 1))
        if longest > _LONGEST_HOSTNAME:
            wrong(
                "completions",
                f"the last pod's host name would have {longest} characters of {_LONGEST_HOSTNAME}: shorten {name!r}",
            )


def _policy(job: dict[str, Any], wrong: Any) -> None:
    rules = job["spec"]["podFailurePolicy"].get("rules")
    if not isinstance(rules, list):
        wrong("podFailurePolicy.rules", "missing")
        return
    if len(rules) > _MOST_RULES:
        wrong("podFailurePolicy.rules", f"{len(rules)} rules of {_MOST_RULES} allowed")
    names = {item.get("name") for _, item in containers(job)}
    for index, rule in enumerate(rules):
        path = f"podFailurePolicy.rules[{index}]"
        action = rule.get("action")
        if action not in _ACTIONS:
            wrong(f"{path}.action", f"{action!r}: one of {', '.join(_ACTIONS)}")
        if action == "FailIndex" and "backoffLimitPerIndex" not in job["spec"]:
            wrong(f"{path}.action", "FailIndex needs backoffLimitPerIndex")
        if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
            wrong(path, "exactly one of onExitCodes and onPodConditions")
        if rule.get("onExitCodes"):
            _codes(rule["onExitCodes"], f"{path}.onExitCodes", names, wrong)


def _codes(on: dict[str, Any], path: str, names: set[Any], wrong: Any) -> None:
    container, operator, values = on.get("containerName"), on.get("operator"), on.get("values") or []
    if container is not None and container not in names:
        wrong(f"{path}.containerName", f"there is no container {container!r}")
    if operator not in ("In", "NotIn"):
        wrong(f"{path}.operator", f"{operator!r}: In or NotIn")
    if not 1 <= len(values) <= _MOST_CODES:
        wrong(f"{path}.values", f"{len(values)} exit codes: 1 to {_MOST_CODES}")
    if operator == "In" and 0 in values:
        wrong(f"{path}.values", "0 is success, which no failure rule may match")
    if values != sorted(set(values)):
        wrong(f"{path}.values", f"{values}: each once, in rising order")
