"""R6xx: fault schedules, and what the recovery layer can do about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from runner.recipe.checks.rule import Report, rule
from runner.recipe.layer_settings import ft_launcher, inprocess
from runner.recipe.units import format_duration

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

HARD = frozenset({"native_hang", "sigkill", "sigstop", "oom_kill"})
"""Faults that end or freeze a process: only a launcher that starts processes again can mend them."""


LOADER = frozenset({"loader_death", "loader_hang"})
"""Faults of the processes that load data for a rank."""


@rule("R601")
def faults_fit_run(recipe: Recipe, report: Report) -> None:
    """`faults.count` must not exceed the steps that faults can hit.

    Drawn faults hit distinct steps after `after_step`. A schedule that asks for more is not clipped but refused.
    """
    faults, steps = recipe.faults, recipe.training.steps
    room = max(0, steps - faults.after_step - len({f.step for f in faults.at if f.step > faults.after_step}))
    if faults.count > room:
        report.add(
            "faults.count",
            f"{faults.count} faults do not fit the {room} steps between faults.after_step {faults.after_step} and "
            f"training.steps {steps}",
            f"ask for at most {room}, or lower faults.after_step" if room else "lower faults.after_step",
            also="faults.after_step" if faults.after_step else "training.steps",
        )


@rule("R602")
def stated_faults_can_fire(recipe: Recipe, report: Report) -> None:
    """Each of `faults.at` must name a step and a rank of the run, and each step, rank and phase once."""
    ranks, steps = report.facts.ranks, recipe.training.steps
    seen: Counter[tuple[int, int, str]] = Counter()
    for index, fault in enumerate(recipe.faults.at):
        path = f"faults.at[{index}]"
        if fault.step > steps:
            report.add(
                f"{path}.step", f"step {fault.step} is after the last one, {steps}", also="training.steps"
            )
        if ranks is not None and fault.rank >= ranks:
            report.add(
                f"{path}.rank", f"rank {fault.rank} does not exist: the run has ranks 0 to {ranks - 1}"
            )
        seen[(fault.step, fault.rank, fault.phase)] += 1
        if seen[(fault.step, fault.rank, fault.phase)] == 2:
            report.add(
                path, f"rank {fault.rank} has another fault at step {fault.step} already", "move one of them"
            )


@rule("R603")
def weights_match_types(recipe: Recipe, report: Report) -> None:
    """`faults.weights` must have one number for each of `faults.types`."""
    faults = recipe.faults
    if faults.weights is not None and len(faults.weights) != len(faults.types):
        report.add(
            "faults.weights",
            f"{len(faults.weights)} weights for {len(faults.types)} types",
            "give one weight a type, or leave weights out",
            also="faults.types",
        )


@rule("R604")
def types_are_distinct(recipe: Recipe, report: Report) -> None:
    """Each type stands once in `faults.types`; `faults.weights` says how often it is drawn."""
    for index, kind in enumerate(recipe.faults.types):
        if kind in recipe.faults.types[:index]:
            report.add(f"faults.types[{index}]", f"{kind} is listed twice", "use faults.weights")


@rule("R605")
def faults_have_witnesses(recipe: Recipe, report: Report) -> None:
    """Faults need at least two ranks.

    A fault is noticed, agreed on and recovered from by the peers of the rank it hits. With a single process there are
    none: what such a run shows says nothing about a real one.
    """
    if report.facts.ranks == 1 and report.facts.faults:
        report.add(
            "faults.count" if recipe.faults.count else "faults.at",
            "the run has one process, and a fault needs peers that notice it and recover with it",
            "use two ranks or more (cluster.processes_per_node), or no faults",
            also="cluster.processes_per_node",
        )


def _written(recipe: Recipe, kinds: AbstractSet[str]) -> str:
    """Where a fault of these kinds is asked for: among those that are drawn, else the first that is stated."""
    faults = recipe.faults
    if faults.count and kinds & set(faults.types):
        return "faults.types"
    stated = (f"faults.at[{index}].type" for index, fault in enumerate(faults.at) if fault.type in kinds)
    return next(stated, "faults.at")


@rule("R606", "warning")
def layer_survives_faults(recipe: Recipe, report: Report) -> None:
    """The recovery layer should survive the faults that are injected.

    `none` survives nothing. `inprocess` survives what reaches Python: exceptions, `sys.exit`, hangs, NaN losses. A
    process that is killed, frozen, stuck in native code or gone needs `ft_launcher`, and so does one whose GPU has
    failed: nothing but a new process gets a new context.
    """
    layer, types = recipe.recovery.layer, report.facts.fault_types
    hard = HARD | {"cuda_error"} if report.facts.on_gpus else HARD
    if layer == "none" and types:
        report.add(
            _written(recipe, types),
            f"recovery.layer none survives no fault ({', '.join(sorted(types))}): the run stops at the first",
            "use inprocess for soft faults, ft_launcher for hard ones, or expect to start the run again",
            also="recovery.layer",
        )
    elif layer == "inprocess" and types & hard:
        report.add(
            _written(recipe, types & hard),
            f"recovery.layer inprocess does not survive {', '.join(sorted(types & hard))}: the process is gone",
            "use `ft_launcher` or `ft_launcher+inprocess`, which start it again",
            also="recovery.layer",
        )


@rule("R607", "warning")
def budget_covers_faults(recipe: Recipe, report: Report) -> None:
    """The restart budget should cover the faults that are injected."""
    total, types = report.facts.faults, report.facts.fault_types
    soft, launcher = inprocess(recipe), ft_launcher(recipe)
    if soft and soft.max_restarts < total and not (launcher and types <= HARD):
        report.add(
            "recovery.inprocess.max_restarts",
            f"{soft.max_restarts} restarts do not cover {total} faults: the run would stop with exit code 11",
            f"use at least {total}",
            also="faults.count",
        )
    if launcher and launcher.max_restarts < total and (not soft or types & HARD):
        report.add(
            "recovery.ft_launcher.max_restarts",
            f"{launcher.max_restarts} restarts do not cover {total} faults: the run would stop with exit code 11",
            f"use at least {total}",
            also="faults.count",
        )


@rule("R608", "warning")
def hang_outlasts_detection(recipe: Recipe, report: Report) -> None:
    """An injected hang should last longer than its detection takes, else it is only a pause."""
    duration = recipe.faults.hang_duration
    if duration is None or not report.facts.fault_types & {"hang", "native_hang"}:
        return
    soft, launcher = inprocess(recipe), ft_launcher(recipe)
    watch = soft.soft_timeout if soft else launcher.rank_heartbeat_timeout if launcher else None
    limit = watch or recipe.recovery.process_group_timeout
    if duration <= limit:
        report.add(
            "faults.hang_duration",
            f"a hang of {format_duration(duration)} is over before it is noticed after {format_duration(limit)}",
            f"use more than {format_duration(limit)}, or leave it out",
        )


@rule("R609", "warning")
def faults_are_drawn(recipe: Recipe, report: Report) -> None:
    """`faults.types` and `faults.weights` without `faults.count` draw nothing. `count: 0`, written out, is meant so."""
    faults = recipe.faults
    given: frozenset[str] = getattr(faults, "given", frozenset())  # of the view; pydantic's are not asked for
    meant = "count" in given or bool(faults.at)
    if faults.count == 0 and not meant and faults.types and given & {"types", "weights"}:
        path = "faults.types" if "types" in given else "faults.weights"
        report.add(path, "no fault is drawn: faults.count is 0", "set faults.count", also="faults.count")


@rule("R610")
def phases_come(recipe: Recipe, report: Report) -> None:
    """The `phase` of each of `faults.at` must come at its step.

    A save happens every `checkpoint.every` steps and at the last one, a snapshot also every `snapshot_every`; only in
    phase `step` is there a loss to spoil, and data workers start with the first step.
    """
    checkpoint, last = recipe.checkpoint, recipe.training.steps
    for index, fault in enumerate(recipe.faults.at):
        path = f"faults.at[{index}]"
        saved = fault.step % checkpoint.every == 0 or fault.step == last
        between = checkpoint.snapshot_every is not None and fault.step % checkpoint.snapshot_every == 0
        if fault.type == "nan_loss" and fault.phase != "step":
            report.add(f"{path}.phase", f"there is no loss in phase {fault.phase}", "use phase `step`")
        elif fault.type in LOADER and fault.phase in ("start", "restore"):
            report.add(f"{path}.phase", f"no data worker runs in phase {fault.phase}", "use phase `step`")
        elif fault.phase == "save" and not saved:
            message = f"step {fault.step} is not saved: checkpoints come every {checkpoint.every} steps"
            report.add(
                f"{path}.step", message, f"use a multiple of {checkpoint.every}", also="checkpoint.every"
            )
        elif fault.phase == "snapshot" and not saved and not between:
            also = "checkpoint.snapshot_every" if checkpoint.snapshot_every else "checkpoint.every"
            report.add(f"{path}.step", f"no snapshot is taken at step {fault.step}", "see checkpoint.snapshot_every",
                       also=also)  # fmt: skip


@rule("R611")
def loader_faults_have_workers(recipe: Recipe, report: Report) -> None:
    """Faults of data workers need data workers: `dataset.workers` above 0, and data that is not streamed.

    A frozen one is noticed after `dataset.worker_timeout`, which must not be 0 then.
    """
    types, dataset = report.facts.fault_types & LOADER, recipe.dataset
    if not types:
        return
    path = "faults.types" if recipe.faults.count else "faults.at"
    named = ", ".join(sorted(types))
    if not dataset.workers or getattr(dataset, "streaming", False):
        report.add(
            path, f"{named}: the ranks load their data themselves", "set dataset.workers", also="dataset"
        )
    elif "loader_hang" in types and not dataset.worker_timeout:
        report.add(
            path,
            "loader_hang: a frozen data worker would never be noticed, dataset.worker_timeout is 0",
            "set dataset.worker_timeout",
            also="dataset",
        )


@rule("R612")
def window_below_budget(recipe: Recipe, report: Report) -> None:
    """The restarts of a `window` must be fewer than `max_restarts`, which ends the run first otherwise."""
    for layer, settings in (("inprocess", inprocess(recipe)), ("ft_launcher", ft_launcher(recipe))):
        window = settings.window if settings else None
        if settings is not None and window is not None and window.restarts >= settings.max_restarts:
            report.add(
                f"recovery.{layer}.window.restarts",
                f"{window.restarts} is not below recovery.{layer}.max_restarts ({settings.max_restarts}): "
                "the window never matters",
                f"lower it, or raise recovery.{layer}.max_restarts",
                also=f"recovery.{layer}.max_restarts",
            )
