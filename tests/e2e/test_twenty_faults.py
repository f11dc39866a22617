"""Twenty faults in one run: nothing grows, and the weights end as if nothing had happened."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from product import LAYERS, NVRX_RUN, Run, left_behind, make_run, same

STEPS = 24
MIXED = ("exception", "sigkill", "nan_loss", "exit_1", "sigkill")
CASES = {
    "inprocess": ("exception",),
    "ft_launcher": ("sigkill",),
    "ft_launcher+inprocess": MIXED,
}
# What a process may gain between the early faults and the late ones, thirteen faults later: less than one each.
GROWTH = 24 * 2**20  # bytes
WIDTH = 8192  # makes the weights alone of one life 3 MB a rank, so that lives which are kept are seen
MORE = 5  # threads, descriptors, processes, files: what a census happens to meet


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    resident: int
    threads: int
    descriptors: int


@dataclass
class Census:
    """What all processes of a run hold, again and again while it runs."""

    processes: list[tuple[float, dict[int, Held]]] = field(default_factory=list)
    shared: list[tuple[float, int]] = field(default_factory=list)

    def take(self, root: psutil.Process, marker: Path) -> None:
        found = {}
        for process in [root, *root.children(recursive=True)]:
            try:
                held = Held(process.memory_info().rss, process.num_threads(), process.num_fds())
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue  # it has just ended
            found[process.pid] = held
        now = time.time()
        self.processes.append((now, found))
        if marker.exists():
            run_id = json.loads(marker.read_text())["run_id"]
            self.shared.append((now, len(list(Path("/dev/shm").glob(f"*nvrx-{run_id}*")))))


def watched(run: Run, census: Census, seconds: float) -> None:
    """`nvrx-run RECIPE`, which must succeed within `seconds`, under the census."""
    log = run.recipe.with_name("output.txt")
    with log.open("w") as output:
        process = subprocess.Popen(
            [NVRX_RUN, str(run.recipe)], stdout=output, stderr=output, cwd=run.recipe.parent
        )
        root = psutil.Process(process.pid)
        until = time.monotonic() + seconds
        while process.poll() is None:
            assert time.monotonic() < until, log.read_text()
            census.take(root, run.folder / "run.json")
            time.sleep(0.2)
    assert process.returncode == 0, log.read_text()
    assert left_behind(run.folder) == []


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layer", CASES)
def test_twenty_faults_leave_everything_flat(tmp_path: Path, layer: str) -> None:
    settings: dict[str, Any] = {
        "training.steps": STEPS,
        "checkpoint.snapshot_every": 1,
        "model.architecture.intermediate_size": WIDTH,
    }
    plain = make_run(tmp_path / "plain", settings)
    plain.finish()
    kinds = CASES[layer]
    faults = [{"step": 2 + n, "rank": n % 2, "type": kinds[n % len(kinds)]} for n in range(20)]
    run = make_run(tmp_path / "faulty", settings | {"recovery": LAYERS[layer], "faults.at": faults})
    census = Census()
    watched(run, census, seconds=600)

    fired = [event["t"] for event in run.events("FaultFired")]
    assert len(fired) == 20
    assert same(run.state(), plain.state())

    early, late = (fired[2], fired[6]), (fired[15], fired[19])

    def in_span(span: tuple[float, float]) -> list[dict[int, Held]]:
        return [found for t, found in census.processes if span[0] < t < span[1]]

    lasting: dict[int, list[list[Held]]] = defaultdict(lambda: [[], []])
    for index, span in enumerate((early, late)):
        for found in in_span(span):
            for pid, held in found.items():
                lasting[pid][index].append(held)
    compared = 0
    for pid, (before, after) in lasting.items():
        if len(before) < 5 or len(after) < 5:  # a worker that lived for some of the faults
            continue
        compared += 1
        what: Callable[[Held], float]
        for name, what, slack in (
            ("threads", lambda held: held.threads, MORE),
            ("descriptors", lambda held: held.descriptors, MORE),
            ("resident", lambda held: held.resident, GROWTH),
        ):
            grown = median(map(what, after)) - max(map(what, before))  # early on, some still warm up
            assert grown <= slack, (pid, name, grown, before[-1], after[-1])
    assert compared >= 2
    count = [median(len(found) for found in in_span(span)) for span in (early, late)]
    assert count[1] <= count[0] + MORE, count
    total = [
        [sum(held.resident for held in found.values()) for found in in_span(span)] for span in (early, late)
    ]
    assert median(total[1]) < max(total[0]) * 1.15 + GROWTH, total
    shared = [median(n for t, n in census.shared if span[0] < t < span[1]) for span in (early, late)]
    assert shared[1] <= shared[0] + MORE, shared
