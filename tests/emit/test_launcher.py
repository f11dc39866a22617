"""The launcher command is what the real launchers of every NVRx release accept, and it starts workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_releases import VERSIONS, release_environ
from recipes_for_tests import LAYERS, on_cluster, tiny

from runner.emit.launcher import launch_environ, launcher_argv, launcher_env
from runner.emit.nvrx_versions import installed_nvrx, launcher_release
from runner.errors import InputError

FT_LAYERS = LAYERS[2:]
_PARSE_FT = """
import json, sys
from nvidia_resiliency_ext.fault_tolerance import launcher
for argv in json.load(sys.stdin):
    config, command, arguments = launcher.config_from_args(launcher.parse_args(argv[1:]))
    ft = config.fault_tol_cfg
    print("seen", json.dumps({
        "command": [command, *arguments], "nodes": [config.min_nodes, config.max_nodes],
        "ranks": config.nproc_per_node, "endpoint": config.rdzv_endpoint, "run_id": config.run_id,
        "conf": {k: str(v) for k, v in config.rdzv_configs.items()},
        "restarts": config.max_restarts, "term": config.term_timeout, "stop": config.workers_stop_timeout,
        "monitor": config.monitor_interval, "heartbeat": ft.rank_heartbeat_timeout,
        "first_heartbeat": ft.initial_rank_heartbeat_timeout, "check": ft.workload_check_interval,
        "signal": ft.rank_termination_signal.name, "nic": ft.enable_nic_monitor,
        "nic_check": getattr(ft, "enable_nic_healthcheck", False), "look": ft.node_health_check_interval,
        "no_progress": getattr(ft, "max_no_progress_cycles", 0), "local": config.local_addr,
    }))
"""
_PARSE_TORCHRUN = """
import json, sys
from torch.distributed.run import config_from_args, parse_args
for argv in json.load(sys.stdin):
    config, command, arguments = config_from_args(parse_args(argv[1:]))
    print("seen", json.dumps({
        "command": [command, *arguments], "nodes": [config.min_nodes, config.max_nodes],
        "ranks": config.nproc_per_node, "endpoint": config.rdzv_endpoint, "run_id": config.run_id,
        "conf": {k: str(v) for k, v in config.rdzv_configs.items()},
        "restarts": config.max_restarts, "monitor": config.monitor_interval, "local": config.local_addr,
    }))
"""


def parse(code: str, commands: list[list[str]], environ: dict[str, str]) -> list[dict]:
    """What a launcher's own parser makes of commands, in one process: it imports torch."""
    environ = {**environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(commands), env=environ, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [line.removeprefix("seen ") for line in done.stdout.splitlines() if line.startswith("seen ")]
    return [json.loads(text) for text in seen]


def many_settings(version: str) -> list[str]:
    """A command in which nothing is at its default."""
    recipe = tiny(
        recovery={
            "layer": "ft_launcher+inprocess",
            "rendezvous_timeout": "7m30s",
            "ft_launcher": {
                "max_restarts": 7, "rank_heartbeat_timeout": "3m", "initial_rank_heartbeat_timeout": 250.5,
                "workload_check_interval": "250ms", "monitor_interval": 0.2, "workers_stop_timeout": 2,
                "term_timeout": "95s", "health_check_interval": "7s",
            },
        },
        cluster={"nodes": 3, "rendezvous_port": 29611},
    )  # fmt: skip
    return launcher_argv(
        recipe, recipe_path=Path("/etc/nvrx/recipe.yaml"), overrides=["a.b=c d"], node_rank=1, nvrx_version=version,
        rendezvous_endpoint="job-0.job:29611", local_address="job-1.job", run_id="job", bin_dir=Path("/opt/bin"),
    )  # fmt: skip


def links(version: str, **checks: bool) -> list[str]:
    """A command that looks after InfiniBand links."""
    recipe = tiny(recovery={"layer": "ft_launcher", "ft_launcher": checks})
    return launcher_argv(recipe, recipe_path=Path("r.yaml"), nvrx_version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_real_parser_of_each_release_reads_what_the_recipe_says(version: str) -> None:
    can_check = version >= "0.6"
    argv = many_settings(version)
    assert argv[0] == "/opt/bin/ft_launcher"
    seen, monitored = parse(_PARSE_FT, [argv, links(version, nic_monitor=True)], release_environ(version))
    assert (monitored["nic"], monitored["nic_check"]) == (True, False)
    if can_check:
        assert "--ft-enable-nic-healthcheck=True" in links(version, nic_check=True)
    else:
        with pytest.raises(InputError, match=f"recovery.ft_launcher.nic_check: NVRx {version} cannot"):
            links(version, nic_check=True)
    conf = seen.pop("conf")
    assert conf["is_host"] == "0"
    assert (conf["join_timeout"], conf["read_timeout"]) == ("450", "300")
    assert ("store_connect_wait_seconds" in conf) == (version >= "0.6")
    assert seen == {
        "command": ["/opt/bin/nvrx-worker", "/etc/nvrx/recipe.yaml", "--set", "a.b=c d"], "nodes": [3, 3], "ranks": 2,
        "endpoint": "job-0.job:29611", "run_id": "job", "restarts": 7, "term": 95, "stop": 2, "monitor": 0.2,
        "heartbeat": 180, "first_heartbeat": 250.5, "check": 0.25, "signal": "SIGKILL", "nic": False,
        "look": 7, "nic_check": False, "no_progress": 0, "local": "job-1.job",
    }  # fmt: skip


def test_real_torchrun_parser_reads_what_the_recipe_says() -> None:
    recipes = [tiny(recovery={"layer": layer}) for layer in LAYERS[:2]]
    commands = [
        launcher_argv(recipe, recipe_path=Path("/r.yaml"), overrides=["name=x"], bin_dir=Path("/opt/bin"))
        for recipe in recipes
    ]
    both = parse(_PARSE_TORCHRUN, commands, dict(os.environ))
    assert len(both) == 2
    for seen in both:
        assert seen.pop("conf")["is_host"] == "1"
        assert seen == {
            "command": ["/opt/bin/nvrx-worker", "/r.yaml", "--set", "name=x"], "nodes": [1, 1], "ranks": 2,
            "endpoint": "127.0.0.1:29500", "run_id": "tiny", "restarts": 0, "monitor": 0.1, "local": "127.0.0.1",
        }  # fmt: skip


def test_workers_that_cannot_answer_are_not_waited_for_long() -> None:
    """torchrun stops the others when one is lost; those hang in a collective for as long as nobody kills them."""
    argv = launcher_argv(tiny(), recipe_path=Path("r.yaml"), torchrun_flags=frozenset({"--shutdown-timeout"}))
    assert "--shutdown-timeout=5" in argv
    older = launcher_argv(tiny(), recipe_path=Path("r.yaml"), torchrun_flags=frozenset())
    assert not [argument for argument in older if argument.startswith("--shutdown")]


def test_command_follows_the_installed_release_and_else_the_one_of_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = tiny(recovery={"layer": "ft_launcher"}, cluster={"nvrx_version": "0.7"})
    installed = launcher_release(installed_nvrx() or "")
    assert set(installed.flags) <= set(launcher_argv(recipe, recipe_path=Path("r.yaml")))
    monkeypatch.setattr("runner.emit.launcher.installed_nvrx", lambda: None)
    assert "--ft-max-no-progress-cycles=0" in launcher_argv(recipe, recipe_path=Path("r.yaml"))
    nameless = tiny(recovery={"layer": "ft_launcher"})
    with pytest.raises(InputError, match=r"cluster\.nvrx_version"):
        launcher_argv(nameless, recipe_path=Path("r.yaml"))


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0", "0.8.0", "1.0", "0.41", "new"])
def test_unknown_release_is_refused(version: str) -> None:
    with pytest.raises(InputError, match=r"not supported: install 0\.4\.1 to 0\.7"):
        launcher_release(version)


@pytest.mark.parametrize("version", ["0.4.1", "0.4", "0.5.0", "0.6.0rc1", "0.7.0+cu13", "0.7.12"])
def test_known_releases_are_recognised(version: str) -> None:
    assert launcher_release(version).minor == int(version.split(".")[1][0])


def test_several_nodes_need_to_know_where_they_meet() -> None:
    recipe = tiny(cluster={"nodes": 2})
    with pytest.raises(InputError, match=r"cluster\.leader"):
        launcher_argv(recipe, recipe_path=Path("r.yaml"))
    led = tiny(cluster={"nodes": 2, "leader": "node-a.example"})
    assert "--rdzv-endpoint=node-a.example:29500" in launcher_argv(
        led, recipe_path=Path("r.yaml"), node_rank=1
    )
    with pytest.raises(InputError, match=r"node rank 2 is outside .*nodes is 2; give one from 0 to 1"):
        launcher_argv(led, recipe_path=Path("r.yaml"), node_rank=2)


def test_ranks_of_a_node_come_from_its_instance_type() -> None:
    argv = launcher_argv(on_cluster("p5.48xlarge", nodes=1), recipe_path=Path("r.yaml"))
    assert "--nproc-per-node=8" in argv
    with pytest.raises(InputError, match="processes_per_node"):
        launcher_argv(
            tiny(cluster={"accelerator": "auto", "processes_per_node": None}), recipe_path=Path("r.yaml")
        )


def test_environment_holds_what_the_layer_needs_and_nothing_that_harms() -> None:
    plain, inprocess = (launcher_env(tiny(recovery={"layer": layer})) for layer in LAYERS[:2])
    needed = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0", "TORCH_CPP_LOG_LEVEL": "error"}
    assert needed.items() <= inprocess.items()
    assert not needed.keys() & plain.keys()
    for environ in (plain, inprocess, launcher_env(on_cluster(layer="ft_launcher+inprocess"))):
        assert not {name for name in environ if name.startswith(("RDMAV_", "FI_"))}
        assert (
            not {"NCCL_BUFFSIZE", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
            & environ.keys()
        )
    assert launcher_env(on_cluster())["NCCL_SOCKET_IFNAME"] == "^lo,docker,veth"
    assert "NCCL_SOCKET_IFNAME" not in plain


def test_environment_of_an_outer_launcher_is_not_believed() -> None:
    outer = {"RANK": "3", "PET_STANDALONE": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "HOME": "/h"}
    own = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
    environ = launch_environ(tiny(recovery={"layer": "inprocess"}), {**outer, **own}, node_rank=2)
    assert not {"RANK", "PET_STANDALONE", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} & environ.keys()
    assert environ["HOME"] == "/h"
    assert environ["GROUP_RANK"] == "2"
    assert environ["OMP_NUM_THREADS"] == "4"  # the user's choice
    assert environ["TORCH_NCCL_RETHROW_CUDA_ERRORS"] == "0"  # not a choice


_WORKER = """#!{python}
import logging, os, pathlib, signal, sys
import datetime
import torch, torch.distributed as dist
assert logging.__file__.startswith(sys.base_prefix), logging.__file__
rank = int(os.environ["RANK"])
folder = pathlib.Path(__file__).parent
client = None
if os.environ.get("FT_LAYER"):
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
first = not (folder / "died").exists()
if client is not None and first:
    dist.barrier()
    if rank == 1:
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
total = torch.ones(1)
dist.all_reduce(total)
import nvidia_resiliency_ext
(folder / f"done-{{rank}}").write_text(f"{{int(total)}} {{sys.argv[1]}} {{nvidia_resiliency_ext.__file__}}")
dist.destroy_process_group()
if client is not None:
    client.shutdown_workload_monitoring()
"""


def start_with(layer: str, version: str, tmp_path: Path, free_port: int) -> list[str]:
    """Run the real launcher on two workers in a folder full of shadowing files; what rank 0 and 1 wrote."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name in ("torchrun", "ft_launcher"):
        (scripts / name).symlink_to(Path(sys.executable).parent / name)
    worker = scripts / "nvrx-worker"
    worker.write_text(_WORKER.format(python=sys.executable))
    worker.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("runner.py", "datasets.py", "logging.py", "torch.py"):
        (home / name).write_text("raise SystemExit('shadowed')\n")
    recipe = tiny(recovery={"layer": layer}, cluster={"rendezvous_port": free_port})
    argv = launcher_argv(recipe, recipe_path=home / "r.yaml", bin_dir=scripts, nvrx_version=version)
    environ = launch_environ(recipe, release_environ(version))
    if layer.startswith("ft"):
        environ["FT_LAYER"] = "1"
    done = subprocess.run(
        argv, cwd=home, env=environ, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert (scripts / "died").exists() == layer.startswith("ft")
    return [(scripts / f"done-{rank}").read_text() for rank in (0, 1)]


# torchrun beside such files: tests/e2e/test_quickstart.py
@pytest.mark.parametrize("layer", ["ft_launcher", pytest.param("inprocess", marks=pytest.mark.slow)])
def test_command_starts_two_workers_and_nothing_in_the_folder_shadows(
    layer: str, tmp_path: Path, free_port: int
) -> None:
    for text in start_with(layer, installed_nvrx() or "", tmp_path, free_port):
        assert text.startswith(f"2 {tmp_path}/home/r.yaml ")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_restarts_a_killed_worker(version: str, tmp_path: Path, free_port: int) -> None:
    for text in start_with("ft_launcher", version, tmp_path, free_port):
        total, _, package = text.split()
        assert total == "2"
        assert version == installed_nvrx() or f"/{version}/" in package
