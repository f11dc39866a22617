"""The timeouts of a recipe as a picture: one line each, in the order in which they would fire."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from runner.recipe import layer_settings
from runner.recipe.facts import Facts
from runner.recipe.units import format_duration, rough_duration

_WIDTH = 30


class Rung(NamedTuple):
    """One timeout, or (`expected`) one thing that takes its time and should be over before the next rungs."""

    seconds: float
    name: str
    effect: str
    expected: bool = False


def rungs(facts: Facts) -> list[Rung]:
    """All timeouts of the recipe's layer, shortest first; on a tie, what is expected comes before what cuts it off."""
    found = [*_expected(facts), *_data(facts), *_recovery(facts), *_checkpoint(facts), *_kubernetes(facts)]
    return sorted(found, key=lambda rung: (rung.seconds, not rung.expected))


def ladder(facts: Facts) -> Iterator[str]:
    """The picture. The bars are logarithmic; `.` marks what is expected, `#` what is a limit."""
    found = rungs(facts)
    low = math.log10(max(1e-3, found[0].seconds))
    high = math.log10(max(1e-3, found[-1].seconds))
    for rung in found:
        share = (math.log10(max(1e-3, rung.seconds)) - low) / (high - low or 1)
        bar = ("." if rung.expected else "#") * (1 + round(share * (_WIDTH - 1)))
        yield f"  {_short(rung):>7} {bar:<{_WIDTH}} {rung.name}: {rung.effect}"


def _short(rung: Rung) -> str:
    if not rung.expected:
        return str(format_duration(timedelta(seconds=rung.seconds)))
    minutes = rung.seconds / 60
    return f"~{minutes:.0f}m" if minutes >= 2 else "~" + rough_duration(rung.seconds).replace(" ", "")


def _expected(facts: Facts) -> Iterator[Rung]:
    if facts.step_seconds is not None:
        yield Rung(facts.step_seconds, "(a step)", "probably", True)
    if facts.write_seconds is not None:
        blocking = facts.recipe.checkpoint.mode == "sync"
        yield Rung(
            facts.write_seconds, "(a save)", "blocks training" if blocking else "beside training", True
        )


def _data(facts: Facts) -> Iterator[Rung]:
    dataset = facts.recipe.dataset
    if dataset.workers and dataset.worker_timeout:
        effect = "a data worker that gives nothing is killed, and its rank fails"
        yield Rung(dataset.worker_timeout.total_seconds(), "dataset.worker_timeout", effect)


def _recovery(facts: Facts) -> Iterator[Rung]:
    recovery = facts.recipe.recovery
    inprocess, launcher = layer_settings.inprocess(facts.recipe), layer_settings.ft_launcher(facts.recipe)
    if inprocess:
        for key, effect in (
            ("monitor_interval", "monitors look for faults"),
            ("last_call_wait", "further ranks may report before a restart begins"),
            ("termination_grace", "a rank that is being killed gets SIGKILL"),
            ("heartbeat_timeout", "a process that went silent counts as lost"),
            ("soft_timeout", "a rank without progress is interrupted"),
            ("hard_timeout", "a rank that ignored that is killed"),
            ("barrier_timeout", "a restart that some ranks do not join is given up"),
            ("completion_timeout", "the end no longer waits for other ranks"),
        ):
            yield Rung(getattr(inprocess, key).total_seconds(), f"inprocess.{key}", effect)
    if launcher:
        for key, effect in (
            ("monitor_interval", "the launcher looks whether its workers live"),
            ("workload_check_interval", "heartbeats are checked"),
            ("workers_stop_timeout", "healthy workers are stopped after another failed"),
            ("term_timeout", "a launcher that was asked to stop kills its workers"),
            ("rank_heartbeat_timeout", "workers without heartbeat are started again"),
            (
                "initial_rank_heartbeat_timeout",
                "workers that have not sent a first heartbeat are started again",
            ),
        ):
            yield Rung(getattr(launcher, key).total_seconds(), f"ft_launcher.{key}", effect)
    effect = (
        "a collective fails: gloo raises an error"
        if facts.on_gpus is False
        else "a collective fails, NCCL's watchdog ends the process"
    )
    yield Rung(recovery.process_group_timeout.total_seconds(), "process_group_timeout", effect)
    effect = "a run that was asked to stop is killed"
    yield Rung(recovery.stop_timeout.total_seconds(), "stop_timeout", effect)
    effect = "a rank that hangs in one part of its start-up is stopped"
    yield Rung(recovery.start_timeout.total_seconds(), "start_timeout", effect)
    effect = "nodes that have not met give up"
    yield Rung(recovery.rendezvous_timeout.total_seconds(), "rendezvous_timeout", effect)


def _checkpoint(facts: Facts) -> Iterator[Rung]:
    checkpoint = facts.recipe.checkpoint
    yield Rung(
        checkpoint.write_timeout.total_seconds(), "checkpoint.write_timeout", "a write counts as failed"
    )
    yield Rung(checkpoint.load_timeout.total_seconds(), "checkpoint.load_timeout", "a load counts as failed")


def _kubernetes(facts: Facts) -> Iterator[Rung]:
    kubernetes = facts.recipe.cluster.kubernetes
    if kubernetes is None:
        return
    effect = "a pod that cannot find the leader gives up"
    yield Rung(kubernetes.leader_timeout.total_seconds(), "kubernetes.leader_timeout", effect)
    for key, effect in (
        ("grace_period", "a pod that was asked to stop is killed"),
        ("active_deadline", "the Job ends"),
    ):
        value = getattr(kubernetes, key)
        if value is not None:
            yield Rung(value.total_seconds(), f"kubernetes.{key}", effect)
