"""Real ranks for the checkpoint tests: processes with a gloo group, a small FSDP2 model and a life per attempt.

Ranks are forked from a process that has imported torch already, so that a case costs milliseconds to start. The
store lives in the test's own process and survives every kill.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from runner.checkpoint.contradiction import OwnRun
from runner.checkpoint.manager import Manager
from runner.checkpoint.nvrx_queue import WriterQueue
from runner.checkpoint.shm import SHARED_MEMORY
from runner.checkpoint.writing import Writing
from runner.errors import RunError
from runner.ledger.events import SaveCommitted, SnapshotTaken
from runner.recipe.checkpoint import CheckpointSection
from runner.train.ports import TrainState

HERE = Path(__file__).parent
CPU = torch.device("cpu")


class TestLife:
    """A life as a recovery layer would hand it out, without a layer."""

    __test__ = False

    def __init__(self, store: dist.Store, rank: int, world_size: int, attempt: str, in_process: bool) -> None:
        self.rank = self.local_rank = rank
        self.world_size = self.local_world_size = world_size
        self.attempt = attempt
        self.in_process = in_process
        self.store = dist.PrefixStore(f"life/{attempt}", store)
        self.beats = 0
        self._group_store = dist.PrefixStore(f"group/{attempt}", store)
        self._hooks: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    def join(self, device: torch.device) -> None:
        dist.init_process_group(
            "gloo", store=self._group_store, rank=self.rank, world_size=self.world_size,
            timeout=timedelta(seconds=60),
        )  # fmt: skip

    def heartbeat(self, step: int) -> None:
        self.beats += 1

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        with self._lock:
            yield

    def on_abort(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    def on_last_fault(self, hook: Callable[[], None]) -> None:
        self.last_words = hook

    def abort(self) -> None:
        """What a recovery layer does when a fault ends the life."""
        for hook in self._hooks:
            hook()
        dist.destroy_process_group()


class Recorder:
    """A ledger and a log that remember."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def record(self, event: Any, *, ago: float = 0.0) -> None:
        self.events.append(event)

    def sync(self) -> None: ...

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields))

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, line, fields in self.lines if line == event]


class Net(nn.Module):
    """Dimensions that no world size divides, a tensor smaller than the world, and a buffer that forward changes."""

    def __init__(self, width: int = 13) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.out = nn.Linear(width, 1)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        for layer in self.inner:
            x = torch.tanh(layer(x))
        return self.out(x)


class Trainer:
    """A tiny training run that is a function of the step alone, whatever the world size."""

    def __init__(
        self, life: TestLife, *, sharding: str = "fsdp", width: int = 13, model_seed: int = 7
    ) -> None:
        torch.manual_seed(model_seed)
        self.life = life
        self.width = width
        self.model = Net(width)
        mesh = init_device_mesh("cpu", (life.world_size,))
        if sharding == "fsdp":
            for layer in self.model.inner:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        elif sharding == "ddp":
            self.ddp = nn.parallel.DistributedDataParallel(self.model)
        self.sharding = sharding
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # makes the moments exist; undone by the initial values below
        torch.manual_seed(model_seed)
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.model.named_parameters():
            moments = self.optimizer.state[parameter]
            moments["exp_avg"].zero_()
            moments["exp_avg_sq"].zero_()
            tensors[f"model.{name}"] = parameter
            tensors[f"optim.exp_avg.{name}"] = moments["exp_avg"]
            tensors[f"optim.exp_avg_sq.{name}"] = moments["exp_avg_sq"]
        buffers = {f"model.{name}": buffer for name, buffer in self.model.named_buffers()}
        self.state = TrainState(tensors | buffers, frozenset(buffers), on_restored=self._refresh, data={})
        self._refresh()
        self.losses: dict[int, float] = {}

    def _refresh(self) -> None:
        for parameter in self.model.parameters():
            self.optimizer.state[parameter]["step"].fill_(float(self.state.step))

    def forward_backward(self) -> None:
        step, rank, world = self.state.step + 1, self.life.rank, self.life.world_size
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(12, self.width, generator=generator)
        y = torch.randn(12, 1, generator=generator)
        share = slice(rank * 12 // world, (rank + 1) * 12 // world)
        self.optimizer.zero_grad()
        model = self.ddp if self.sharding == "ddp" else self.model
        loss = nn.functional.mse_loss(model(x[share]), y[share])
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        self.losses[step] = mean.item() / world

    def step(self, checkpointer: Manager, *, force_save: bool = False) -> None:
        checkpointer.before_forward()
        self.forward_backward()
        checkpointer.before_update()
        self.optimizer.step()
        self.state.step += 1
        checkpointer.after_update(force_save=force_save)

    def full_state(self) -> dict[str, torch.Tensor]:
        """Every tensor whole, copied."""
        gathered = {}
        for name, tensor in self.state.tensors.items():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            gathered[name] = full.detach().clone()
        return gathered


def digest(state: dict[str, torch.Tensor]) -> str:
    """One number for a whole state."""
    hasher = hashlib.sha256()
    for name in sorted(state):
        hasher.update(name.encode() + state[name].contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def train(
    place: Rank,
    folder: str,
    run_id: str,
    until: int,
    sharding: str = "fsdp",
    width: int = 13,
    run: OwnRun | None = None,
    decided: dict[str, Any] | None = None,
    each_step: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """One whole run to step `until`: restore, train, finish, close. Digests of each step, or of the last one alone."""
    life = place.life()
    recorder = Recorder()
    trainer = Trainer(life, sharding=sharding, width=width)
    trainer.state.decided = decided or {}
    checkpointer = manager(folder, recorder, run_id, run, **settings)
    try:
        checkpointer.attach(life, trainer.state)
        step, source = checkpointer.restore()
        digests = {step: digest(trainer.full_state())}
        while trainer.state.step < until:
            trainer.step(checkpointer)
            if each_step or trainer.state.step == until:
                digests[trainer.state.step] = digest(trainer.full_state())
        checkpointer.finish()
    finally:
        checkpointer.close()
    return {
        "from": step,
        "source": source,
        "digests": digests,
        "losses": trainer.losses,
        "committed": [event.step for event in recorder.of(SaveCommitted)],
        "snapshots": [event.step for event in recorder.of(SnapshotTaken)],
        "lines": recorder.lines,
    }


def attempt(place: Rank, **arguments: Any) -> dict[str, Any]:
    """Run `train`, or return the error that a user would see."""
    try:
        return train(place, **arguments)
    except RunError as error:
        return {"error": str(error), "code": int(error.exit_code)}


def section(**settings: Any) -> CheckpointSection:
    return CheckpointSection(**{"every": 1000, "write_timeout": 60, "load_timeout": 60, **settings})


def named(run_id: str) -> str:
    """A run id that no other test session has."""
    return f"test{os.environ['CKPT_SESSION']}-{run_id}"


def writer_pid() -> int:
    """The checkpoint writer of this rank, its only child process."""
    (writer,) = multiprocessing.active_children()
    assert writer.pid is not None
    return writer.pid


def wait_for_writer(writing: Writing) -> None:
    """Its start takes seconds, which is not what is timed."""
    end = time.monotonic() + 60
    while not writing.idle():
        assert time.monotonic() < end
        time.sleep(0.01)


def manager(
    folder: Path | str, recorder: Recorder, run_id: str, run: OwnRun | None = None, **settings: Any
) -> Manager:
    made = Manager(section(**settings), Path(folder), named(run_id), recorder, recorder, CPU, run=run)
    if _spare is not None:
        _take_spare_writer(made._writing, _spare)
    return made


_spare: list[WriterQueue] | None = None  # of this rank of a `World`; one at most


def _take_spare_writer(writing: Writing, spare: list[WriterQueue]) -> None:
    """Let a manager go on with the writer process of the one before it, as another life in a process does.

    To import torch in a new one takes longer than most tests. What a manager finds dead or at work is ended as ever.
    """
    start, stop = writing._make_writer, writing.stop

    def started(rank: int) -> WriterQueue:
        while spare:
            writer = spare.pop()
            if writer.death() is None:
                return writer
            writer.kill()
        return start(rank)

    def stopped() -> None:
        writer = writing._writer
        if writer is None or spare or writer.death() is not None or not _rests(writing):
            stop()
            return
        writing._writer = None
        spare.append(writer)

    writing._make_writer, writing.stop = started, stopped  # type: ignore[method-assign]


def _rests(writing: Writing) -> bool:
    """Whether the writer has done all that it was given; it may still be starting."""
    writing._read_reports()
    return not writing._handed


class Rank:
    """What a case function gets: this rank's place, and lives made on demand."""

    def __init__(self, rank: int, world_size: int, store: dist.Store, world_id: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.world_id = world_id
        self.kept: dict[str, Any] = {}
        self._lives = 0

    def life(self, *, in_process: bool = False) -> TestLife:
        self._lives += 1
        life = TestLife(self.store, self.rank, self.world_size, f"{self.world_id}.{self._lives}", in_process)
        life.join(CPU)
        return life


def _serve(rank: int, world_size: int, port: int, world_id: str, pipe: Any) -> None:
    faulthandler.enable(all_threads=True)  # a crash in native code says where
    faulthandler.register(signal.SIGUSR2)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    place = Rank(rank, world_size, store, world_id)
    global _spare
    _spare = []
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        if function is None:
            break
        try:
            answer = ("ok", function(place, **arguments))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            answer = ("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(answer)
    for writer in _spare:
        writer.stop()


_context: Any = None
_store: dist.TCPStore | None = None
_count = 0


def _setup() -> None:
    global _context, _store
    if _context is None:
        path = os.pathsep.join([str(HERE), *sys.path])
        os.environ["CKPT_SESSION"] = str(os.getpid())
        os.environ["PYTHONPATH"], before = path, os.environ.get("PYTHONPATH")
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(["ckpt_world"])
        _store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        from multiprocessing import forkserver

        forkserver.ensure_running()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class Unanswered(AssertionError):
    """A rank did not answer in time."""


class World:
    """`size` rank processes that run functions on demand."""

    def __init__(self, size: int) -> None:
        global _count
        _setup()
        assert _store is not None
        _count += 1
        self.size = size
        self.name = f"w{_count}"
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(rank, size, _store.port, f"w{_count}", theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], **arguments: Any) -> None:
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def results(self, timeout: float = 60) -> list[Any]:
        """Every rank's result; an error anywhere fails the test with that rank's traceback."""
        answers = []
        end = time.monotonic() + timeout
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, end - time.monotonic())):
                for process in self.processes:
                    os.kill(process.pid, signal.SIGUSR2)
                raise Unanswered(f"rank {rank} did not answer within {timeout} s")
            answers.append(pipe.recv())
        errors = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind == "error"]
        assert not errors, "\n".join(errors)
        return [value for _, value in answers]

    def run(self, function: Callable[..., Any], timeout: float = 60, **arguments: Any) -> list[Any]:
        self.start(function, **arguments)
        return self.results(timeout)

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            self.processes[rank].kill()
        for rank in ranks:
            self.processes[rank].join(10)

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send((None, {}))
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
        for pipe in self.pipes:
            pipe.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def arenas(run_id: str) -> list[str]:
    return sorted(path.name for path in SHARED_MEMORY.glob(f"nvrx-{named(run_id)}-*"))
