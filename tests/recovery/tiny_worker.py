"""A worker with a training function small enough to see through: `python tiny_worker.py RECIPE`.

Each step adds the sum over the ranks of (step + rank) to a number; rank 0 writes it to a file after each step, and a
life goes on from there. So the end is known: for N steps and W ranks, W*N*(N+1)/2 + N*W*(W-1)/2.

TINY_FAULTS: `step:rank:what` separated by commas; each fires once in the run's life, `bug` and `what!` each time.
"""

import atexit
import ctypes
import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil
import structlog
import torch
import torch.distributed as dist
import yaml

from runner.control.channel import Control
from runner.errors import ExitCode, InputError, RunError
from runner.launch.terminal import take_terminal
from runner.ledger.writer import LedgerWriter
from runner.recipe.recipe import Recipe
from runner.recovery.run import run_with_recovery
from runner.system.process import die_with_parent


def fire(folder: Path, step: int, rank: int) -> None:
    for text in filter(None, os.environ.get("TINY_FAULTS", "").split(",")):
        at, who, what = text.split(":")
        if (int(at), int(who)) != (step, rank):
            continue
        marker = folder / f"fired-{text.replace(':', '-')}"
        again = what == "bug" or what.endswith("!")
        what = what.removesuffix("!")
        if not again and marker.exists():
            continue
        marker.write_text(str(os.getpid()))
        if what in ("exception", "bug"):
            raise ValueError(f"{what} at step {step}")
        if what == "input":
            raise InputError("dataset.path: /nowhere does not exist")
        if what == "hang":
            while True:
                time.sleep(0.05)
        if what == "native_hang":
            ctypes.CDLL(None).sleep(600)
        if what.startswith("exit_"):
            sys.exit(int(what[5:]))
        if what.startswith("sig"):
            os.kill(os.getpid(), getattr(signal, what.upper()))
            time.sleep(600)
        if what == "os_exit_0":
            os._exit(0)


def census() -> dict[str, int]:
    """What could grow from life to life."""
    me = psutil.Process()
    return {
        "pid": me.pid,
        "threads": me.num_threads(),
        "descriptors": me.num_fds(),
        "children": len(me.children(recursive=True)),
        "resident": me.memory_info().rss,
    }


def stop_monitor(folder: Path) -> None:
    """The process that NVRx's monitor process is forked from is stopped, once."""
    from nvidia_resiliency_ext.inprocess import monitor_process

    daemonize = monitor_process.daemonize_fn

    def stopped(*args, **kwargs):
        try:
            (folder / "stopped").touch(exist_ok=False)
        except FileExistsError:
            return daemonize(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGSTOP)

    monitor_process.daemonize_fn = stopped


def hang(how: str) -> None:
    """`frozen`, or `stuck` in native code."""
    os.kill(os.getpid(), signal.SIGSTOP) if how == "frozen" else ctypes.CDLL(None).sleep(600)


def end_badly(what: str) -> None:
    """After a run that is done: `leave` hangs in the end of the process group, the others in a hook at exit.

    In NVRx's wrapper: `frozen` or `stuck` when all ranks have returned, `returns-frozen` and `returns-stuck` when this
    one has.
    """
    if what in ("frozen", "stuck"):
        from nvidia_resiliency_ext.inprocess.wrap import CallWrapper

        end = CallWrapper.shutdown

        def shutdown(call) -> None:
            hang(what)
            end(call)

        CallWrapper.shutdown = shutdown
    elif what.startswith("returns-"):
        from nvidia_resiliency_ext.inprocess.store import PrefixStore

        PrefixStore.record_completed = lambda store: hang(what.removeprefix("returns-"))
    elif what == "leave":
        dist.destroy_process_group = lambda: time.sleep(600)
    elif what == "hang":
        atexit.register(time.sleep, 600)
    else:
        atexit.register(os.kill, os.getpid(), getattr(signal, what.upper()))


def main() -> None:
    die_with_parent(os.getppid())
    recipe = Recipe.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text()), strict=False)
    rank = int(os.environ["RANK"])
    take_terminal(rank)
    folder = recipe.run_folder
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ledger = LedgerWriter(folder, rank=rank, life="start")
    control = Control.from_environment()
    state = folder / "state.json"
    lives = folder / "lives"
    lives.mkdir(exist_ok=True)
    order: list[str] = []
    if os.environ.get("TINY_STOPPED_MONITOR") == str(rank):
        stop_monitor(folder)
    if (folder / f"end-{rank}").exists():
        end_badly((folder / f"end-{rank}").read_text())

    def train(life) -> None:
        if "TINY_CENSUS" in os.environ:
            with (folder / f"census-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(census()) + "\n")
        life.join(torch.device("cpu"))
        life.on_abort(lambda: order.append("freeze"))
        life.on_last_fault(lambda: (folder / f"last-words-{life.attempt}-rank{rank}").touch())
        (lives / f"{life.attempt}-rank{rank}").write_text(str(os.getpid()))
        life.store.set(f"here/{life.rank}", "1")
        life.store.wait([f"here/{peer}" for peer in range(life.world_size)])
        done, total = json.loads(state.read_text()) if state.exists() else (0, 0)
        print(os.environ.get("TINY_SAY", ""), end="\n" if "TINY_SAY" in os.environ else "", flush=True)
        if "TINY_START" in os.environ:
            life.starting("model", timedelta(seconds=float(os.environ["TINY_START"])))
            fire(folder, 0, life.rank)
        dist.barrier()
        life.resumed(done)
        for step in range(done + 1, recipe.training.steps + 1):
            fire(folder, step, life.rank)
            value = torch.tensor([float(step + life.rank), float(control.stop_requested() is not None)])
            dist.all_reduce(value)
            total += int(value[0])
            with life.atomic():
                if life.rank == 0:
                    draft = state.with_suffix(".draft")
                    draft.write_text(json.dumps([step, total]))
                    draft.rename(state)
            life.heartbeat(step)
            if value[1]:
                if life.rank == 0:
                    time.sleep(float(os.environ.get("TINY_BEHIND", "0")))
                raise RunError(f"stopped after step {step}", ExitCode.PREEMPTED)
            time.sleep(float(os.environ.get("TINY_STEP", "0.01")))
        fire(folder, recipe.training.steps + 1, life.rank)

    run_with_recovery(recipe, train, ledger, structlog.get_logger())


if __name__ == "__main__":
    main()
