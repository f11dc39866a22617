"""Two imitation nodes on one machine: each its own supervisor, launcher and process tree, one shared run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import processes_of
from tinylab import expected, kept_port, make_scripts, recipe_text

from runner.faults.schedule import post_mortem
from runner.system.process import descendants

STEPS = 150


class Node:
    """One node: starts, and loses, everything on it at once."""

    def __init__(self, folder: Path, scripts: Path, recipe: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._argv = [sys.executable, str(Path(__file__).parent / "drive.py"), str(scripts), str(recipe)]

    def start(self, **environment: str) -> None:
        with (self._folder / f"node-{self._rank}.log").open("a") as log:
            self.process = subprocess.Popen(
                self._argv,
                env=os.environ | {"NODE_RANK": str(self._rank), "TINY_STEP": "0.2"} | environment,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )

    def lose(self) -> None:
        """The machine is switched off: nothing gets to clean up."""
        tree = [self.process.pid, *descendants(self.process.pid)]
        for pid in tree:
            os.kill(pid, signal.SIGSTOP)
        for pid in tree:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def two_nodes(tmp_path: Path, layer: str, **changes: object) -> list[Node]:
    scripts = make_scripts(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    cluster = {
        "accelerator": "cpu",
        "nodes": 2,
        "processes_per_node": 1,
        "leader": "127.0.0.1",
        "rendezvous_port": kept_port(),
    }
    recipe.write_text(recipe_text(tmp_path, layer, cluster=cluster, **changes))
    return [Node(tmp_path, scripts, recipe, rank) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_is_frozen_when_those_of_the_other_node_have_left_is_killed_and_named(tmp_path):
    nodes = two_nodes(tmp_path, "none", process_group_timeout="6s")
    try:
        for node in nodes:
            node.start(TINY_FAULTS="13:0:sigstop")
        assert [node.process.wait(150) for node in nodes] == [1, 1]
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.lose()
    says = "rank 0 hung at the end of the run, frozen (SIGSTOP): another rank had been done for 6 s, and was killed"
    for rank in (0, 1):
        log = (tmp_path / f"node-{rank}.log").read_text()
        assert f"nvrx-run: {says} after step 12; the same command resumes the run" in log
    assert f"hang on rank 0 after step 12: {says}" in post_mortem(tmp_path / "run")
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_loss_of_either_node_and_their_return(tmp_path):
    nodes = two_nodes(tmp_path, "ft_launcher", steps=STEPS, process_group_timeout="20s")
    state = tmp_path / "run/state.json"

    def step() -> int:
        return json.loads(state.read_text())[0] if state.exists() else 0

    def reach(target: int) -> None:
        deadline = time.monotonic() + 150
        while step() < target:
            assert time.monotonic() < deadline, (step(), target)
            for node in nodes:  # what Kubernetes does with a pod that failed
                if node.process.poll() not in (None, 0):
                    node.start()
            time.sleep(0.1)

    try:
        for node in nodes:
            node.start()
        for lost in (1, 0, 1):
            reach(step() + 3)
            nodes[lost].lose()
            nodes[lost].start()
        reach(STEPS)
        assert [node.process.wait(60) for node in nodes] == [0, 0]
        assert json.loads(state.read_text()) == expected(STEPS)
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.lose()
    assert processes_of(tmp_path) == []
