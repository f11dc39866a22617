"""What checkpoints cost: stalls, efficiency, save, load and restore times of the product itself, from its ledger.

    python benchmarks/checkpoint_stall.py --folder /tmp/stall                    # 2 GPUs, the reference's workload
    python benchmarks/checkpoint_stall.py --folder /tmp/stall --shape tiny       # 2 CPU ranks, a minute or two

Every case but `plain` is one recipe run by `nvrx-run`; its figures come from the ledger. Prints one Markdown table with
versions and the date.

    none        no checkpoint but the last: the step time to compare with
    async       a checkpoint every `--every` steps, NVRx's writer
    load        the same command again with more steps: load from storage
    sync        a checkpoint every `--every` steps, training waits
    plain       `torch.distributed.checkpoint.save` of the same state, without the product (plain_save.py)
    snapshots   a snapshot after every step, in memory only
    alternate   a snapshot after every second step: steps that copy one against those that do not, within one run
    inprocess   an exception in the middle: restore from memory
    respawn     a SIGKILL in the middle under ft_launcher: restore from shared memory
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner.ledger.events import Loaded, SaveCommitted, SaveStarted, SnapshotTaken, StepEnded
from runner.ledger.reader import RunLedger, read_run
from runner.ledger.saves import saves_of

SHAPES: dict[str, dict[str, Any]] = {
    "reference": {
        "architecture": {
            "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 12,
            "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
            "max_position_embeddings": 2048,
        },
        "sequence_length": 2048, "micro_batch_size": 4, "accelerator": "cuda",
    },
    "tiny": {
        "architecture": {
            "model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000, "max_position_embeddings": 64,
        },
        "sequence_length": 64, "micro_batch_size": 1, "accelerator": "cpu",
    },
}  # fmt: skip
CASES = ("none", "async", "load", "sync", "plain", "snapshots", "alternate", "inprocess", "respawn")
WARM_UP = 10  # steps at the start of a life that are not looked at


@dataclass(frozen=True)
class Setup:
    """What all cases have in common."""

    folder: Path
    shape: dict[str, Any]
    ranks: int
    steps: int
    every: int

    def recipe(self, case: str) -> dict[str, Any]:
        """The recipe of a case."""
        never = self.steps
        checkpoint: dict[str, Any] = {"mode": "async", "every": never, "keep_last": 1}
        recovery: dict[str, Any] = {"layer": "none"}
        faults: dict[str, Any] = {}
        steps = self.steps
        middle = {"step": max(WARM_UP + 2, self.steps // 2), "rank": self.ranks - 1}
        if case in ("async", "load", "sync"):
            checkpoint |= {"mode": "sync" if case == "sync" else "async", "every": self.every}
        if case == "load":
            steps += WARM_UP
        if case in ("snapshots", "inprocess", "respawn"):
            checkpoint["snapshot_every"] = 1
        if case == "alternate":
            checkpoint["snapshot_every"] = 2
        if case == "inprocess":
            recovery, faults = {"layer": "inprocess"}, {"at": [{**middle, "type": "exception"}]}
        if case == "respawn":
            recovery, faults = {"layer": "ft_launcher"}, {"at": [{**middle, "type": "sigkill"}]}
        return {
            "name": "stall",
            "model": {"architecture": self.shape["architecture"], "param_dtype": "bfloat16"},
            "dataset": {
                "source": "embedded", "tokenizer": "bytes", "sequence_length": self.shape["sequence_length"],
            },
            "sharding": {"strategy": "fsdp"},
            "training": {
                "steps": steps, "global_batch_size": self.shape["micro_batch_size"] * self.ranks,
                "micro_batch_size": self.shape["micro_batch_size"], "schedule": {"kind": "constant"},
                "log_every": 50,
            },
            "checkpoint": checkpoint,
            "recovery": recovery,
            "faults": faults,
            "cluster": {"accelerator": self.shape["accelerator"], "processes_per_node": self.ranks},
            "output": {"folder": str(self.run_folder(case))},
        }  # fmt: skip

    def run_folder(self, case: str) -> Path:
        """Where a case's run lies; `load` goes on with that of `async`."""
        return self.folder / ("async" if case == "load" else case)


def run(setup: Setup, case: str, timeout: float) -> RunLedger:
    """Run one case to its end and return its ledger."""
    path = setup.folder / f"{case}.yaml"
    path.write_text(yaml.safe_dump(setup.recipe(case), sort_keys=False))
    if case != "load":
        shutil.rmtree(setup.run_folder(case), ignore_errors=True)
    with (setup.folder / f"{case}.log").open("w") as log:
        program = Path(sys.executable).with_name("nvrx-run")
        done = subprocess.run(
            [program, path], stdout=log, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
    if done.returncode != 0:
        tail = (setup.folder / f"{case}.log").read_text().splitlines()[-30:]
        raise SystemExit(f"{case}: nvrx-run exited with {done.returncode}\n" + "\n".join(tail))
    return read_run(setup.run_folder(case))


def plain(setup: Setup, shape: str, timeout: float) -> list[float]:
    """Seconds of each save of torch's own, one for each that the case `sync` makes."""
    saves = setup.steps // setup.every
    program = Path(sys.executable).with_name("torchrun")
    script = Path(__file__).with_name("plain_save.py")
    argv: list[str | Path] = [program, "--standalone", f"--nproc-per-node={setup.ranks}", script]
    argv += ["--folder", setup.folder / "plain", "--shape", shape, "--saves", str(saves)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise SystemExit(f"plain: torchrun exited with {done.returncode}\n{done.stderr[-3000:]}")
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("saved ")]


def step_events(ledger: RunLedger) -> list[StepEnded]:
    """Steps of rank 0 after the warm-up of the first life."""
    steps = [r.event for r in ledger.records if isinstance(r.event, StepEnded) and r.rank == 0]
    return [event for event in steps if event.step > WARM_UP]


def by_writes(ledger: RunLedger) -> tuple[list[float], list[float]]:
    """Seconds of rank 0's steps after the warm-up: those that ended during a write, and the others."""
    starts = {r.event.step: r.at for r in ledger.records if isinstance(r.event, SaveStarted) and r.rank == 0}
    ends = {r.event.step: r.at for r in ledger.records if isinstance(r.event, SaveCommitted)}
    writes = [(starts[step], end) for step, end in ends.items() if step in starts]
    during: list[float] = []
    other: list[float] = []
    for record in ledger.records:
        if isinstance(record.event, StepEnded) and record.rank == 0 and record.event.step > WARM_UP:
            inside = any(begin <= record.at <= end for begin, end in writes)
            (during if inside else other).append(record.event.seconds)
    return during, other


def loads(ledger: RunLedger, source: str) -> list[float]:
    """Seconds to get the state back, per rank."""
    events = [r.event for r in ledger.records if isinstance(r.event, Loaded)]
    return [event.seconds for event in events if event.source == source]


def rows_of(setup: Setup, case: str, ledger: RunLedger, base: float | None) -> list[tuple[str, str]]:
    """What a case shows, as (what, value)."""
    steps = step_events(ledger)
    typical = statistics.fmean(event.seconds for event in steps)
    rows = []
    if case == "none":
        rows.append(("step without checkpoints, mean", f"{typical * 1e3:.1f} ms"))
    if case in ("async", "sync"):
        saves = [save for save in saves_of(ledger.records) if save.step < setup.steps]
        stalls = [save.stalled for save in saves]
        written = [save.written for save in saves if save.written is not None]
        size = max((save.bytes or 0) for save in saves) / setup.ranks
        rows.append((f"{case}: stall a save ({len(stalls)} saves, {size / 1e9:.2f} GB a rank)", span(stalls)))
        rows.append((f"{case}: from hand-over to commit", span(written)))
        if base is not None:
            what = f"{case}: mean step without checkpoints / with (two runs: noisy)"
            rows.append((what, f"{base / typical:.1%}"))
        during, other = by_writes(ledger)
        if case == "async" and during and other:
            rows.append((
                f"{case}: median step while nothing is written / during a write, one run",
                f"{statistics.median(other) * 1e3:.1f} / {statistics.median(during) * 1e3:.1f} ms",
            ))  # fmt: skip
            quiet = statistics.fmean(other)
            rows.append((
                f"{case}: efficiency within one run: mean step while nothing is written / mean of all steps",
                f"{quiet / statistics.fmean([*during, *other]):.2%}",
            ))  # fmt: skip
        stalled = sum(event.stalled for event in steps)
        rows.append((
            f"{case}: share of stepping time not stalled",
            f"{1 - stalled / sum(event.seconds for event in steps):.1%}",
        ))  # fmt: skip
    if case == "load":
        rows.append(("load from storage, per rank", span(loads(ledger, "storage"))))
    if case == "snapshots":
        taken = [r.event.stalled for r in ledger.records if isinstance(r.event, SnapshotTaken)]
        rows.append(("snapshot every step: step, mean", f"{typical * 1e3:.1f} ms"))
        rows.append(
            ("snapshot every step: stall a snapshot, median", f"{statistics.median(taken) * 1e3:.1f} ms")
        )
        if base is not None:
            rows.append(("snapshot every step: added to a step", f"{(typical - base) * 1e3:.1f} ms"))
    if case == "alternate":
        # The state after an even step is copied during the next one.
        copying = [event.seconds for event in steps if event.step % 2 == 1]
        free = [event.seconds for event in steps if event.step % 2 == 0]
        with_copy, without = statistics.median(copying), statistics.median(free)
        rows.append((
            "median step with a snapshot's copy / without, one run",
            f"{with_copy * 1e3:.1f} / {without * 1e3:.1f} ms: {with_copy / without - 1:+.2%}",
        ))  # fmt: skip
    if case == "inprocess":
        rows.append(("restore from memory, per rank", span(loads(ledger, "memory"))))
    if case == "respawn":
        rows.append(
            ("restore from shared memory by a new process, per rank", span(loads(ledger, "shared_memory")))
        )
    return rows


def span(values: list[float]) -> str:
    """Lowest, median and highest."""
    if not values:
        return "did not happen"
    unit, factor = ("ms", 1e3) if max(values) < 1 else ("s", 1.0)
    low, middle, high = min(values) * factor, statistics.median(values) * factor, max(values) * factor
    return f"{low:.4g} / {middle:.4g} / {high:.4g} {unit}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="where runs and logs go; on the disk to measure"
    )
    parser.add_argument("--shape", choices=SHAPES, default="reference")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated, in this order")
    parser.add_argument("--micro-batch", type=int, help="sequences a step and rank, for longer steps")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a case may take")
    args = parser.parse_args()
    folder = args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    shape = dict(SHAPES[args.shape])
    shape["micro_batch_size"] = args.micro_batch or shape["micro_batch_size"]
    setup = Setup(folder, shape, args.ranks, args.steps, args.every)
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("nvrx-run", "torch", "nvidia-resiliency-ext")
    )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    print(f"{today}, {versions}, Python {platform.python_version()}, shape {args.shape}, {args.ranks} ranks, "
          f"{args.steps} steps, save every {args.every}; low / median / high\n")  # fmt: skip
    print("| what | value |\n|---|---|", flush=True)
    base = None
    for case in args.cases.split(","):
        if case == "plain":
            seconds = plain(setup, args.shape, args.timeout)
            what = f"torch.distributed.checkpoint.save, blocked a save ({len(seconds)} saves)"
            print(f"| {what} | {span(seconds)} |", flush=True)
            continue
        ledger = run(setup, case, args.timeout)
        if case == "none":
            base = statistics.fmean(event.seconds for event in step_events(ledger))
        for what, value in rows_of(setup, case, ledger, base):
            print(f"| {what} | {value} |", flush=True)


if __name__ == "__main__":
    main()
