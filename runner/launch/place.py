"""This node's place in the run, and the launcher's command and environment that follow from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runner.emit.launcher import launch_environ, launcher_argv
from runner.errors import ExitCode, InputError, RunError
from runner.launch.pod import NodePlace, pod_identity, wait_for_name
from runner.recipe.recipe import Recipe
from runner.system.network import ReservedPort


@dataclass(frozen=True)
class Place:
    """Where this node stands.

    Attributes:
        node_rank: 0 for the leader.
        endpoint: where the launchers meet, `host:port`.
        pod: what the cluster manager says, where there is one.
        port: of the endpoint, kept for the launcher where that serves it.
    """

    node_rank: int
    endpoint: str | None
    pod: NodePlace | None
    port: ReservedPort | None = field(default=None, compare=False, repr=False)

    @property
    def leader_elsewhere(self) -> str | None:
        """Name of the leader, on a follower that a cluster manager placed."""
        return self.pod.leader if self.pod is not None and self.node_rank != 0 else None

    def argv(self, recipe: Recipe, recipe_path: Path) -> list[str]:
        """The launcher's command."""
        return launcher_argv(
            recipe,
            recipe_path=recipe_path,
            node_rank=self.node_rank,
            rendezvous_endpoint=self.endpoint,
            local_address=self.pod.address if self.pod else None,
            run_id=self.pod.job if self.pod else None,
            nproc=max(1, visible_gpus()),
        )

    def environment(self, recipe: Recipe) -> dict[str, str]:
        """The launcher's environment."""
        return launch_environ(recipe, os.environ, node_rank=self.node_rank)


def own_rank() -> int:
    """This node's rank, as its cluster manager says or the user in `NODE_RANK`.

    Raises:
        InputError: a leader is named, but no index; or `NODE_RANK` is no rank.
    """
    pod = pod_identity(os.environ)
    if pod is not None:
        return pod.node_rank
    rank = os.environ.get("NODE_RANK") or "0"
    if not (rank.isascii() and rank.isdecimal()):
        raise InputError(f"NODE_RANK is {rank!r}; set it to 0 on the first node, 1 on the next, and so on")
    return int(rank)


def managed() -> bool:
    """Whether a cluster manager started this node, and will start another in its place."""
    return pod_identity(os.environ) is not None


def find_place(recipe: Recipe, *, say: Callable[[str], None], stop_requested: Callable[[], bool]) -> Place:
    """Find this node's place; on a follower, wait for the leader.

    Raises:
        InputError: the rendezvous port is taken on the leader.
        RunError: the leader does not come, or the run is asked to stop before it does (PREEMPTED).
    """
    cluster = recipe.cluster
    pod = pod_identity(os.environ)
    if pod is None:
        if cluster.nodes == 1:
            # On one node nobody else needs to know the port, and runs side by side do not meet.
            port = ReservedPort()
            return Place(0, f"127.0.0.1:{port.number}", None, port)
        rank = own_rank()
        if rank >= cluster.nodes:
            last = cluster.nodes - 1
            raise InputError(
                f"NODE_RANK is {rank}, and cluster.nodes is {cluster.nodes}: the last node's is {last}"
            )
        return Place(rank, None, None, _reserve_port(recipe) if rank == 0 else None)
    endpoint = f"{pod.leader}:{cluster.rendezvous_port}"
    longest = cluster.kubernetes.leader_timeout if cluster.kubernetes else recipe.recovery.rendezvous_timeout
    timeout = longest.total_seconds()
    leads = pod.node_rank == 0
    if cluster.nodes > 1:
        awaited = None if leads else cluster.rendezvous_port
        if not wait_for_name(
            pod.leader, port=awaited, timeout=timeout, say=say, stop_requested=stop_requested
        ):
            raise RunError("asked to stop while it waited for the leader", ExitCode.PREEMPTED)
    return Place(pod.node_rank, endpoint, pod, _reserve_port(recipe) if leads else None)


def _reserve_port(recipe: Recipe) -> ReservedPort:
    """The launcher would not say that it is taken: it takes whatever listens there for its store, and waits."""
    port = recipe.cluster.rendezvous_port
    try:
        return ReservedPort(port)
    except OSError as error:
        raise InputError(
            f"cluster.rendezvous_port: port {port} is taken on this node; choose another"
        ) from error


def visible_gpus() -> int:
    """GPUs that workers will see, without importing torch."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([item for item in listed.split(",") if item.strip() and item.strip() != "-1"])
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*"))
