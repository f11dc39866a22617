"""Which rank this process is, as torchrun and ft_launcher tell it in the environment. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from runner.errors import RunError


@dataclass(frozen=True)
class RankFacts:
    """This process's place in the group that its launcher started.

    Attributes:
        rank, world_size, local_rank, local_world_size: the usual.
        group_rank: index of this node's launcher.
        master_addr, master_port: where the launcher says that rank 0 can be met.
        agent_store: True where the launcher itself serves a TCPStore there, False where the port is free and on
            rank 0's node.
        restart: how often this launcher has restarted its workers; starts again at 0 with the launcher.
        under_ft_launcher: whether a rank monitor listens for this rank's heartbeats.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    master_addr: str
    master_port: int
    agent_store: bool
    restart: int
    under_ft_launcher: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> RankFacts:
        """Read the facts.

        Raises:
            RunError: this process was not started by torchrun or ft_launcher.
        """
        env = os.environ if environment is None else environment
        try:
            return cls(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_rank=int(env["LOCAL_RANK"]),
                local_world_size=int(env["LOCAL_WORLD_SIZE"]),
                group_rank=int(env.get("GROUP_RANK", "0")),
                master_addr=env["MASTER_ADDR"],
                master_port=int(env["MASTER_PORT"]),
                agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                restart=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
                under_ft_launcher="FT_RANK_MONITOR_IPC_SOCKET" in env,
            )
        except KeyError as error:
            raise RunError(
                f"{error.args[0]} is not set: a worker is started by nvrx-run, torchrun or ft_launcher"
            ) from error
