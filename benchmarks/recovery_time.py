"""Fault to first new finished step, split into phases, for each recovery layer of the product itself.

    python benchmarks/recovery_time.py --folder /tmp/recovery                  # 2 GPUs, the reference's workload
    python benchmarks/recovery_time.py --folder /tmp/recovery --shape tiny     # 2 CPU ranks

Every layer is one recipe run by `nvrx-run` with faults at stated steps: exceptions for `inprocess`, SIGKILL for
`ft_launcher`, both in turn for the two together (`--kinds` says otherwise). Figures come from the run's ledger.
Prints one Markdown table with versions and the date, then the phases of each recovery. `--memory` adds the memory in
use on each GPU (`nvidia-smi`) in every life; its times do not count, since asking the driver holds up processes that
start or end on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.ledger.codec import Record
from runner.ledger.events import StepEnded
from runner.ledger.goodput import Recovery, account
from runner.ledger.history import NS
from runner.ledger.reader import read_run

SHAPES: dict[str, dict[str, Any]] = {
    # The workload that docs/benchmarks compares with: 697 M parameters, 2.1 GB of state a rank on two ranks.
    "reference": {
        "model": {
            "architecture": {
                "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 12,
                "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
                "max_position_embeddings": 2048,
            },
            "param_dtype": "bfloat16",
        },
        "dataset": {"source": "embedded", "sequence_length": 2048},
        "training": {"global_batch_size": 8, "micro_batch_size": 4, "precision": "bf16"},
        "cluster": {"accelerator": "cuda", "processes_per_node": 2},
    },
    "tiny": {
        "model": {
            "architecture": {
                "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
            },
        },
        "dataset": {"source": "embedded", "sequence_length": 64, "max_documents": 100},
        "training": {"global_batch_size": 4, "micro_batch_size": 2, "precision": "fp32"},
        "cluster": {"accelerator": "cpu", "processes_per_node": 2},
    },
}  # fmt: skip
FAULTS = {
    "inprocess": ("exception",),
    "ft_launcher": ("sigkill",),
    "ft_launcher+inprocess": ("exception", "sigkill"),
}
FIRST = 21  # step of the first fault
PARTS = ("detection", "teardown", "startup", "load", "step")


def recipe(
    shape: str, layer: str, kinds: tuple[str, ...], faults: int, distance: int, folder: Path
) -> dict[str, Any]:
    """The recipe of one layer's run: `faults` faults of `kinds` in turn, `distance` steps apart."""
    at = [
        {"step": FIRST + index * distance, "rank": index // len(kinds) % 2, "type": kinds[index % len(kinds)]}
        for index in range(faults)
    ]
    base = SHAPES[shape]
    return {
        "name": "recovery-time",
        **base,
        "training": {**base["training"], "steps": FIRST + faults * distance, "log_every": 10},
        "sharding": {"strategy": "fsdp", "wrap": "transformer_block"},
        "checkpoint": {"mode": "async", "every": 10_000, "snapshot_every": 1},
        "recovery": {"layer": layer},
        "faults": {"at": at},
        "output": {"folder": str(folder), "log_format": "json"},
    }


class GpuMemory(threading.Thread):
    """Reads the memory in use on every GPU, a few times a second, until `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self.samples: list[tuple[float, tuple[int, ...]]] = []
        """Wall clock, seconds; MiB on each GPU."""

    def run(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._over.wait(0.2):
            done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
            self.samples.append((time.time(), tuple(int(line) for line in done.stdout.split())))

    def stop(self) -> None:
        """No more samples."""
        self._over.set()
        self.join()

    def between(self, begin: float, end: float) -> str:
        """The highest value on each GPU in an interval of the wall clock."""
        inside = [values for at, values in self.samples if begin <= at <= end]
        return " / ".join(str(max(column)) for column in zip(*inside, strict=True)) or "no sample"


def lives(records: Sequence[Record]) -> list[tuple[float, float]]:
    """First and last end of a step of each life, wall clock in seconds, in order."""
    ends: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record.event, StepEnded):
            ends.setdefault(record.life, []).append(record.at / NS)
    return sorted((min(at), max(at)) for at in ends.values())


def measure(layer: str, arguments: argparse.Namespace) -> tuple[tuple[Recovery, ...], list[str]]:
    """Run one layer's recipe in a folder of its own; its recoveries, and a line about memory where there are GPUs.

    Raises:
        SystemExit: the run did not finish.
    """
    name = f"{layer.replace('+', '-')}-{time.time_ns()}"
    path = Path(arguments.folder) / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = tuple(arguments.kinds or FAULTS[layer])
    content = recipe(
        arguments.shape, layer, kinds, arguments.faults, arguments.distance, path.with_suffix("")
    )
    path.write_text(yaml.safe_dump(content))
    command = [str(Path(sys.executable).with_name("nvrx-run")), str(path)]
    memory = GpuMemory()
    if arguments.memory:
        memory.start()
    done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout, check=False)
    if arguments.memory:
        memory.stop()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    records = read_run(path.with_suffix("")).records
    goodput, _, _ = account(records)
    if not arguments.memory:
        return goodput.recoveries, []
    spans = lives(records)
    return goodput.recoveries, [
        f"{layer}: MiB in use on the GPUs during life {number}: {memory.between(*span)}"
        for number, span in enumerate(spans, 1)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="where the runs go; a fast local disk")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="reference")
    parser.add_argument("--layers", nargs="+", choices=sorted(FAULTS), default=list(FAULTS))
    parser.add_argument("--faults", type=int, default=5, help="faults a layer")
    parser.add_argument("--kinds", nargs="+", help="faults, in turn; default: by layer")
    parser.add_argument("--distance", type=int, default=11, help="steps from one fault to the next")
    parser.add_argument(
        "--memory", action="store_true", help="read the memory in use on the GPUs instead of times"
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    arguments = parser.parse_args()
    packages = ("torch", "nvidia-resiliency-ext", "transformers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(f"{datetime.date.today()}, Python {platform.python_version()}, {versions}")
    rows, details = [], []
    for layer in arguments.layers:
        recoveries, more = measure(layer, arguments)
        totals = [r.total / NS for r in recoveries]
        medians = [statistics.median(r.parts.get(part, 0) for r in recoveries) / NS for part in PARTS]
        rows.append([layer, len(totals), statistics.median(totals), min(totals), max(totals), *medians])
        details += [
            f"{layer}: {r.cause}: " + ", ".join(f"{part} {r.parts.get(part, 0) / NS:.2f}" for part in r.parts)
            + f"; from {r.source}, {r.lost} steps lost"
            for r in recoveries
        ] + more  # fmt: skip
    print("\n| layer | faults | median s | min | max | " + " | ".join(PARTS) + " |")
    print("|---" * (5 + len(PARTS)) + "|")
    for layer, count, *figures in rows:
        print(f"| {layer} | {count} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    print("\n" + "\n".join(details))


if __name__ == "__main__":
    main()
