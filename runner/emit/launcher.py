"""The launcher's command line and environment: what a node executes to start its workers.

One function builds the command for every use: a run executes it, `--emit-command` prints it, the manifest shows it.
The console scripts are used rather than `python -m`, which would put the user's folder on the import path, where a
file called `logging.py` would stand in for the real one.
"""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.emit.nvrx_versions import LauncherRelease, installed_nvrx, launcher_release
from runner.errors import InputError
from runner.recipe.derived import processes_per_node
from runner.recipe.layer_settings import ft_launcher, inprocess

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe
    from runner.recipe.recovery import FtLauncherSettings

WORKER_SCRIPT = "nvrx-worker"
TORCHRUN_MONITOR_INTERVAL = 0.1  # seconds; torchrun looks once per interval whether its workers live
TORCHRUN_STOP_SECONDS = 5
"""Time between SIGTERM and SIGKILL for workers that torchrun stops because a peer or a node was lost: they hang in a
collective and cannot answer. A run that is asked to stop saves before torchrun is told of it."""
LONGEST_STORE_READ = timedelta(minutes=5)
"""Bound of one read from the launchers' store. torchrun's 60 s is too short where the other node is still starting;
much longer would hide a leader that vanished without closing its connections."""


def launcher_argv(
    recipe: Recipe,
    *,
    recipe_path: Path,
    overrides: Sequence[str] = (),
    node_rank: int = 0,
    nvrx_version: str | None = None,
    rendezvous_endpoint: str | None = None,
    local_address: str | None = None,
    run_id: str | None = None,
    bin_dir: Path | None = None,
    nproc: int | None = None,
    torchrun_flags: frozenset[str] | None = None,
) -> list[str]:
    """The command that starts one node's workers.

    Args:
        recipe: the run.
        recipe_path: file that the workers read; absolute, unless the workers share the launcher's folder.
        overrides: `section.key=value` texts that make `recipe` of that file; none where the file is resolved.
        node_rank: index of this node; node 0 hosts the rendezvous.
        nvrx_version: NVRx whose launcher will read this. Default: the installed one, else `cluster.nvrx_version`.
        rendezvous_endpoint: `host:port` of node 0. Default: `cluster.leader`; this machine where there is one node.
        local_address: name under which the other nodes reach this one. Default: the machine's own idea of it.
        run_id: keeps the rendezvous of different jobs apart. Default: the recipe's name.
        bin_dir: folder of the console scripts; `Path()` for bare names. Default: beside this interpreter.
        nproc: ranks on this node, where neither the recipe nor its instance type says.
        torchrun_flags: arguments beyond those of torch 2.9 that the launcher's torchrun takes. Default: looked up in
            the installed one.

    Raises:
        InputError: several nodes and nobody says where they meet, a node rank outside the cluster, an unknown number
            of ranks, or an NVRx release that is not supported.
    """
    cluster = recipe.cluster
    if not 0 <= node_rank < cluster.nodes:
        last = cluster.nodes - 1
        raise InputError(
            f"node rank {node_rank} is outside the cluster: cluster.nodes is {cluster.nodes}; "
            + (f"give one from 0 to {last}" if last else "leave it out")
        )
    ranks = processes_per_node(recipe) or nproc
    if ranks is None:
        raise InputError(
            "cluster.processes_per_node: not given, and no instance_type to take it from; set it"
        )
    scripts = bin_dir if bin_dir is not None else Path(sys.executable).parent
    settings = ft_launcher(recipe)
    join = _seconds(recipe.recovery.rendezvous_timeout)
    conf = {
        "is_host": int(node_rank == 0),
        "join_timeout": join,
        "read_timeout": min(join, _seconds(LONGEST_STORE_READ)),
    }
    own: list[str]
    if settings is None:
        launcher, own = "torchrun", ["--max-restarts=0", f"--monitor-interval={TORCHRUN_MONITOR_INTERVAL}"]
        flag = "--shutdown-timeout"
        if flag in torchrun_flags if torchrun_flags is not None else torchrun_takes(flag):
            own.append(f"{flag}={TORCHRUN_STOP_SECONDS}")
    else:
        version = nvrx_version or installed_nvrx() or cluster.nvrx_version
        if version is None:
            raise InputError(
                "cluster.nvrx_version: NVRx is not installed here, so the command cannot follow it; "
                "name the version of the image, e.g. 0.7.0"
            )
        release = launcher_release(version)
        if release.waits_for_store:
            conf["store_connect_wait_seconds"] = join
        own = [*_ft_arguments(settings), *_nic_arguments(settings, release, version), *release.flags]
        launcher = "ft_launcher"
    common = [
        f"--nnodes={cluster.nodes}",
        f"--nproc-per-node={ranks}",
        f"--node-rank={node_rank}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={_endpoint(recipe, rendezvous_endpoint)}",
        f"--rdzv-id={run_id or recipe.name}",
        "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()),
    ]
    if local_address is None and cluster.nodes == 1:
        local_address = "127.0.0.1"  # a laptop's host name need not resolve
    if local_address is not None:
        common.append(f"--local-addr={local_address}")
    worker = ["--no-python", str(scripts / WORKER_SCRIPT), str(recipe_path), *override_arguments(overrides)]
    return [str(scripts / launcher), *common, *own, *worker]


def override_arguments(overrides: Sequence[str]) -> list[str]:
    """The arguments that carry overrides on to another command."""
    return [word for text in overrides for word in ("--set", text)]


def torchrun_takes(flag: str) -> bool:
    """Whether the installed torchrun knows `flag`; read from its source, since importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    source = Path(spec.submodule_search_locations[0]) / "distributed" / "run.py"
    return source.is_file() and f'"{flag}"' in source.read_text(encoding="utf-8")


def _endpoint(recipe: Recipe, given: str | None) -> str:
    cluster = recipe.cluster
    if given is not None:
        return given
    if cluster.leader is not None:
        return f"{cluster.leader}:{cluster.rendezvous_port}"
    if cluster.nodes == 1:
        return f"127.0.0.1:{cluster.rendezvous_port}"
    raise InputError(
        f"cluster.leader: {cluster.nodes} nodes need the name of node 0 to meet; set it (a pod gets it from its Job)"
    )


def _ft_arguments(settings: FtLauncherSettings) -> list[str]:
    """Arguments that every release of ft_launcher takes alike. Timeouts are always set: unset means for ever."""
    return [
        f"--max-restarts={settings.max_restarts}",
        f"--monitor-interval={_number(settings.monitor_interval)}",
        f"--workers-stop-timeout={_number(settings.workers_stop_timeout)}",
        f"--term-timeout={_number(settings.term_timeout)}",
        f"--ft-workload-check-interval={_number(settings.workload_check_interval)}",
        f"--ft-rank-heartbeat-timeout={_number(settings.rank_heartbeat_timeout)}",
        f"--ft-initial-rank-heartbeat-timeout={_number(settings.initial_rank_heartbeat_timeout)}",
        f"--ft-node-health-check-interval={_number(settings.health_check_interval)}",
        "--ft-rank-termination-signal=SIGKILL",  # a hung rank does not answer to less
    ]


def _nic_arguments(settings: FtLauncherSettings, release: LauncherRelease, version: str) -> list[str]:
    """Arguments for InfiniBand links, always stated: the defaults differ, and some need hardware."""
    found = [f"--ft-enable-nic-monitor={settings.nic_monitor}"]
    if release.checks_nics:
        found.append(f"--ft-enable-nic-healthcheck={settings.nic_check}")
    elif settings.nic_check:
        raise InputError(
            f"recovery.ft_launcher.nic_check: NVRx {version} cannot check links before a start; use 0.6 or later, "
            "or nic_monitor"
        )
    return found


def launcher_env(recipe: Recipe) -> dict[str, str]:
    """Environment that launcher and workers need; what the user sets himself wins (`launch_environ`).

    Nothing here is set where it is not needed: no EFA variable without EFA, no NCCL tuning at all.
    """
    cluster = recipe.cluster
    env = {
        "PYTHONSAFEPATH": "1",  # the user's folder is not a place to import from, in spawned children either
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # torch's stores look up the name of every peer that connects, in the one thread that serves them all: a lost
        # packet to the resolver must not stop a restart for its usual 5 s.
        "RES_OPTIONS": "timeout:1 attempts:3",
        "TORCH_FR_BUFFER_SIZE": "2000",  # what the flight recorder keeps for the post-mortem of a stuck collective
    }
    if cluster.nodes > 1:
        env["NCCL_SOCKET_IFNAME"] = "^lo,docker,veth"
    if inprocess(recipe) is not None:
        env |= {
            "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # an aborted collective must not end the process
            "NCCL_NVLS_ENABLE": "0",  # NVLink SHARP groups do not survive an abort
            "TORCH_CPP_LOG_LEVEL": "error",
        }
        if ft_launcher(recipe) is None:
            # A kernel first used behind a stuck collective would block the abort. Loading all of them at the start
            # takes seconds; under ft_launcher, which ends such a rank all the same, every respawn would pay them.
            env["CUDA_MODULE_LOADING"] = "EAGER"
    return env


_FORCED = frozenset({"PYTHONSAFEPATH", "TORCH_NCCL_RETHROW_CUDA_ERRORS"})
_STALE = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    }
)  # fmt: skip


def launch_environ(recipe: Recipe, environ: Mapping[str, str], *, node_rank: int = 0) -> dict[str, str]:
    """The whole environment of the launcher: the caller's, cleaned of another launcher's traces, and `launcher_env`.

    `PET_*` variables would override launcher arguments, and a rank left over from an outer launcher would be believed.
    `GROUP_RANK` gives the nodes their order in NVRx 0.5 and later.
    """
    kept = {
        name: value for name, value in environ.items() if name not in _STALE and not name.startswith("PET_")
    }
    own = launcher_env(recipe)
    forced = {name: own[name] for name in _FORCED & own.keys()}
    return {**own, **kept, **forced, "GROUP_RANK": str(node_rank)}


def _seconds(value: timedelta) -> int:
    """Whole seconds, rounded up: rendezvous settings take no fractions."""
    return max(1, math.ceil(value.total_seconds()))


def _number(value: timedelta) -> str:
    """Seconds as the shortest decimal: `300`, `0.5`."""
    return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".")


def command_text(
    recipe: Recipe,
    *,
    recipe_path: Path,
    folder: Path,
    overrides: Sequence[str] = (),
    filled_in: Mapping[str, str] | None = None,
    node_rank: int = 0,
    nproc: int | None = None,
) -> str:
    """The launcher command as one line for a shell, for a node of this machine's kind.

    It is what a run here executes, but for the recipe: a run's workers read the resolved copy in its folder, these the
    file that the user wrote, with the same overrides. The line brings along what else a run gives its launcher, so that
    it does the same in any folder of a shell that has set nothing; what that shell has set wins, as it does in a run.

    Args:
        recipe, recipe_path, overrides, node_rank, nproc: as of `launcher_argv`.
        folder: where relative paths of the recipe start.
        filled_in: variables of the environment that the recipe was made with.
    """
    argv = launcher_argv(
        recipe, recipe_path=recipe_path, overrides=overrides, node_rank=node_rank, nproc=nproc
    )
    own = launcher_env(recipe)
    exact = {**(filled_in or {}), "GROUP_RANK": str(node_rank)} | {
        name: value for name, value in own.items() if name in _FORCED
    }
    defaults = [f'{name}="${{{name}-{_in_quotes(own[name])}}}"' for name in own if name not in exact]
    words = [*(f"{name}={shlex.quote(value)}" for name, value in exact.items()), *defaults, shlex.join(argv)]
    return f"cd {shlex.quote(str(folder))} && env {' '.join(words)}"


def _in_quotes(value: str) -> str:
    """A value as the default of a shell's variable, inside of double quotes."""
    return re.sub(r'([\\"$`}])', r"\\\1", value)
