"""R72x: what the emitted Kubernetes objects would get wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from runner.recipe.checks.rule import Report, rule
from runner.recipe.derived import node_shape, processes_per_node
from runner.recipe.image import image_problem
from runner.recipe.instances import MIB
from runner.recipe.quantity import parse_quantity
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

_K = "cluster.kubernetes"
_RESERVED_ENV = (
    r"NVRX_RUN_.*|JOB_COMPLETION_INDEX|PET_.*|RDMAV_.*|(LOCAL_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
    r"|PYTHONSAFEPATH|TORCH_NCCL_ASYNC_ERROR_HANDLING"
)
_SECRET_NAME = (  # compiled when a recipe has an environment to look at
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY(_ID)?|PRIVATE_KEY|AUTH)($|_)"
)
_SECRET_VALUE = (
    r"hf_[A-Za-z0-9]{20,}|(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,}\.[\w-]{10,}\.|://[^/\s:@]+:[^/\s@]+@"
)
_OWN_LABELS = ("kubernetes.io", "k8s.io", "nvrx-run")
_RECIPE_FILE = "recipe.yaml"


def _kubernetes(recipe: Recipe) -> Any:
    return recipe.cluster.kubernetes


@rule("R721")
def gpus_suffice(recipe: Recipe, report: Report) -> None:
    """Ranks a node do not exceed the GPUs of the instance; a node without GPUs trains on `cpu`."""
    cluster, shape = recipe.cluster, node_shape(recipe)
    if shape is None or cluster.accelerator == "cpu":
        return
    if shape.gpus == 0:
        report.add("cluster.accelerator", f"{shape.name} has no GPU", "set `accelerator: cpu`")
    elif (ranks := processes_per_node(recipe) or 0) > shape.gpus:
        report.add(
            "cluster.processes_per_node",
            f"{ranks} ranks on {shape.gpus} GPUs of {shape.name}",
            f"use {shape.gpus} or fewer",
            also="cluster.instance_type",
        )


@rule("R722")
def requests_fit_the_node(recipe: Recipe, report: Report) -> None:
    """EFA interfaces, CPU, memory and local storage that are asked for exist on the instance."""
    k, shape = _kubernetes(recipe), node_shape(recipe)
    if k is None or shape is None:
        return
    if k.efa is not None and k.efa > shape.efa:
        report.add(
            f"{_K}.efa",
            f"{k.efa} EFA interfaces of {shape.efa} on {shape.name}",
            f"use {shape.efa} or leave it out",
        )
    cpu = parse_quantity(k.resources.cpu) if k.resources.cpu else None
    if cpu is not None and cpu * 1000 > shape.allocatable_millicpu:
        report.add(
            f"{_K}.resources.cpu",
            f"{k.resources.cpu} of {shape.allocatable_millicpu}m that {shape.name} can hand out",
        )
    memory = parse_quantity(k.resources.memory) if k.resources.memory else None
    if memory is not None and memory > shape.allocatable_mib * MIB:
        report.add(
            f"{_K}.resources.memory",
            f"{k.resources.memory} of {shape.allocatable_mib}Mi that {shape.name} can hand out",
        )
    if k.local_storage is not None and k.local_storage.size > shape.local_bytes:
        room = shape.local_bytes // 10**9
        report.add(
            f"{_K}.local_storage.size",
            f"{-(-k.local_storage.size // 10**9)} GB of {room} GB that {shape.name} has for it: the kubelet keeps a "
            f"tenth of its {shape.nvme_gb} GB free, and logs and /tmp need room",
            f"use at most {room}GB" if room else "leave it out",
        )


@rule("R723")
def environment_is_the_users_own(recipe: Recipe, report: Report) -> None:
    """`env` sets nothing that the launcher sets or that is known to break, and nothing twice."""
    k = _kubernetes(recipe)
    for name in () if k is None else (*k.env, *k.secret_env):
        if re.fullmatch(_RESERVED_ENV, name):
            section = "env" if name in k.env else "secret_env"
            report.add(
                f"{_K}.{section}.{name}", "set by the launcher, or known to break the run", "leave it out"
            )
    for name in () if k is None else k.env:
        if name in k.secret_env:
            report.add(
                f"{_K}.env.{name}", "given in `secret_env` too", "keep one", also=f"{_K}.secret_env.{name}"
            )


@rule("R724")
def credentials_come_from_secrets(recipe: Recipe, report: Report) -> None:
    """No literal that looks like a credential in `env` or in an annotation."""
    k = _kubernetes(recipe)
    if k is None:
        return
    for name, value in k.env.items():
        if looks_like_credential(name, str(value)):
            report.add(
                f"{_K}.env.{name}",
                "looks like a credential that every reader of the manifest would see",
                f"create a Secret and use `secret_env: {{{name}: {{secret: NAME, key: KEY}}}}`",
                secret=True,
            )
    for name, value in (*k.annotations.items(), *k.service_account_annotations.items()):
        if re.search(_SECRET_VALUE, value):
            report.add(f"{_K}.annotations", f"`{name}` looks like a credential", "leave it out", secret=True)


def looks_like_credential(name: str, value: str) -> bool:
    """Whether an environment variable's name or value is that of a credential; an empty value or a path is none."""
    if re.search(_SECRET_VALUE, value):
        return True
    harmless = value == "" or value.startswith("/") or value.lower() in ("true", "false", "0", "1")
    return bool(re.search(_SECRET_NAME, name.upper())) and not harmless


@rule("R725")
def labels_are_the_users_own(recipe: Recipe, report: Report) -> None:
    """User labels stay out of the names that Kubernetes and the product use."""
    k = _kubernetes(recipe)
    for key in () if k is None else k.labels:
        prefix = key.rpartition("/")[0]
        if prefix and any(prefix == own or prefix.endswith("." + own) for own in _OWN_LABELS):
            report.add(
                ("cluster", "kubernetes", "labels", key),
                "the prefix is not the user's",
                "use a prefix of your own",
            )


@rule("R726")
def tolerations_make_sense(recipe: Recipe, report: Report) -> None:
    """A toleration with `Exists` has no value, one with `Equal` has a key."""
    k = _kubernetes(recipe)
    for index, item in enumerate(() if k is None else k.tolerations):
        path = f"{_K}.tolerations[{index}]"
        if item.operator == "Exists" and item.value:  # a blank one is left out
            report.add(
                f"{path}.value", "`Exists` takes no value", "leave `value` out, or use `operator: Equal`"
            )
        if item.operator == "Equal" and item.key is None:
            report.add(path, "`Equal` needs a key", "add `key`, or use `operator: Exists` for every taint")


@rule("R727")
def pod_security_allows_it(recipe: Recipe, report: Report) -> None:
    """IPC_LOCK needs a privileged namespace: elsewhere the Job is accepted and its pods are refused."""
    k = _kubernetes(recipe)
    if k is not None and k.ipc_lock and k.pod_security != "privileged":
        report.add(
            f"{_K}.ipc_lock",
            f"a namespace of level {k.pod_security} refuses pods with IPC_LOCK",
            "set `pod_security: privileged`, or raise the nodes' memlock limit and leave `ipc_lock` out",
            also=f"{_K}.pod_security",
        )


@rule("R732")
def image_can_be_pulled(recipe: Recipe, report: Report) -> None:
    """The image's name follows the grammar of registries: `[host[:port]/]path[:tag][@digest]`."""
    k = _kubernetes(recipe)
    problem = None if k is None else image_problem(k.image)
    if problem is not None:
        report.add(f"{_K}.image", problem, "write [registry[:port]/]path[:tag][@digest]")


@rule("R734", "warning")
def image_stays_the_same(recipe: Recipe, report: Report) -> None:
    """The image should have a tag other than `latest`, or a digest.

    Pods are replaced during a run. Where the name moves meanwhile, the new pod runs other code than the rest.
    """
    k = _kubernetes(recipe)
    if k is None or "@" in k.image or image_problem(k.image) is not None:
        return
    tag = k.image.rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        what = "`latest` moves" if tag else "no tag stands for `latest`, which moves"
        report.add(
            f"{_K}.image", f"{what}: a pod that is replaced may run another image", "pin a tag or a digest"
        )


@rule("R733")
def patches_leave_the_recipe_alone(recipe: Recipe, report: Report) -> None:
    """No patch of the ConfigMap touches the recipe in it: the pods run what was checked."""
    k = _kubernetes(recipe)
    patch = {} if k is None else k.patches.get("ConfigMap", {})
    path = ("cluster", "kubernetes", "patches", "ConfigMap")
    hint = "change the recipe itself; other keys of `data` are yours"
    if "$patch" in patch:
        report.add((*path, "$patch"), "would take the recipe out of the ConfigMap", hint)
    for field in ("data", "binaryData"):
        if field not in patch:
            continue
        below = patch[field]
        if field == "data" and (not isinstance(below, dict) or "$patch" in below):
            report.add((*path, field), "would take the recipe out of the ConfigMap", hint)
        elif isinstance(below, dict) and _RECIPE_FILE in below:
            report.add((*path, field, _RECIPE_FILE), "the pods would run another recipe than this one", hint)


@rule("R731")
def metrics_port_is_free(recipe: Recipe, report: Report) -> None:
    """`prometheus_port` is not that of the rendezvous; in a pod it is 1024 or above, since the pods are not root."""
    port = recipe.output.live.prometheus_port
    if port is None:
        return
    path = "output.live.prometheus_port"
    if port == recipe.cluster.rendezvous_port:
        report.add(
            path, f"{port} is the port of the rendezvous", "use another", also="cluster.rendezvous_port"
        )
    elif port < 1024 and _kubernetes(recipe) is not None:
        report.add(path, f"{port} may only be opened by root, which the pods are not", "use 1024 or above")


@rule("R730")
def grace_covers_the_stop(recipe: Recipe, report: Report) -> None:
    """`grace_period` must exceed `recovery.stop_timeout`.

    A pod that is asked to leave finishes its step and saves, for at most `stop_timeout`; the kubelet kills it after the
    grace period, saved or not.
    """
    k, longest = _kubernetes(recipe), recipe.recovery.stop_timeout
    if k is not None and k.grace_period is not None and k.grace_period <= longest:
        report.add(
            f"{_K}.grace_period",
            f"{format_duration(k.grace_period)} is not above recovery.stop_timeout ({format_duration(longest)}): "
            "a save would be cut short",
            f"raise it above {format_duration(longest)}, or lower recovery.stop_timeout",
            also="recovery.stop_timeout",
        )
