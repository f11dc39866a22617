"""One execution of the training function on one rank: what all recovery layers have in common."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from runner.control.presence import Presence
from runner.ledger.events import FaultSeen
from runner.recovery.heartbeats import Heartbeats
from runner.recovery.meeting import Meeting
from runner.recovery.ranks import RankFacts
from runner.recovery.sockets import OpenSocket, clients_of, shut_down, tcp_sockets
from runner.recovery.start_watch import StartHangError, StartWatch, raise_in_main_thread
from runner.train.ports import LifeLedger


class Connections:
    """This rank's connections to the store that rank 0 serves, and the sockets of the process group on it.

    Two connections, because a store's client serves one call at a time and the process group's set-up may wait.

    Args:
        meeting: where the store is.
        serve: whether this process serves it (rank 0 where no layer below does).
        timeout: of every wait.
    """

    def __init__(self, meeting: Meeting, *, serve: bool, timeout: timedelta) -> None:
        self.port = meeting.port
        self._timeout = timeout
        self._foreign = tcp_sockets()
        others = clients_of(self.port)
        if not serve:
            meeting.await_server(timeout)
        self._server = self._connect(meeting, serve=True) if serve else None
        self.control = self._connect(meeting)
        self.group = self._connect(meeting)
        # Other processes connect to a server in this one at the same time: theirs are not to be taken for ours.
        self._own = clients_of(self.port) - others

    def _connect(self, meeting: Meeting, *, serve: bool = False) -> TCPStore:
        return TCPStore(
            meeting.address, meeting.port, is_master=serve, wait_for_workers=False, timeout=self._timeout
        )

    def cut(self, *, gloo: bool) -> None:
        """Make every wait on the store raise at once, and every gloo collective where `gloo` says so."""
        if self._server is None:
            shut_down(self._own)
        if gloo:
            since: frozenset[OpenSocket] = tcp_sockets() - self._foreign - self._own
            shut_down(since, spare_ports=frozenset({self.port}))


class ProcessLife:
    """A `Life` over the launcher's environment and a store.

    Args:
        rank, world_size: place in this life (they shrink where an in-process restart leaves a rank behind).
        facts: what the launcher said.
        attempt: the same on all ranks, different in every other life of the run.
        in_process: whether this process ran an earlier life.
        connections: to the store, made for this life.
        group_timeout: of collectives.
        ledger: told when the life turns out to be over.
        layer: name of the recovery layer, for the ledger.
        presence: tells the supervisor how far this rank is.
        start_watch: ends this life where it hangs while it starts.
        first_step: seconds that the first step of a process may take beyond what the steps after it may.
        heartbeats: to ft_launcher's rank monitor, where there is one.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        facts: RankFacts,
        attempt: str,
        in_process: bool,
        connections: Connections,
        group_timeout: timedelta,
        ledger: LifeLedger,
        layer: str,
        presence: Presence,
        start_watch: StartWatch,
        first_step: timedelta,
        heartbeats: Heartbeats | None,
    ) -> None:
        self.first_step = first_step.total_seconds()
        self.heartbeats = heartbeats
        self.rank = rank
        self.world_size = world_size
        self.local_rank = facts.local_rank
        self.local_world_size = facts.local_world_size
        self.attempt = attempt
        self.in_process = in_process
        self.store: Store = PrefixStore(f"{attempt}/control", connections.control)
        self.step = 0
        self.progressed = False  # whether it has finished a step
        self.fails = False  # whether an exception is on its way out
        self.layer = layer
        self._presence = presence
        self._start_watch = start_watch
        self._starting = False
        self.start_hang: StartHangError | None = None  # what is being reported from another thread
        self._connections = connections
        self._group_timeout = group_timeout
        self._ledger = ledger
        self._hooks: list[Callable[[], None]] = []
        self._last_words: list[Callable[[], None]] = []
        self._over = threading.Event()
        self._over_lock = threading.Lock()

    def join(self, device: torch.device) -> None:
        """Initialise the default process group: NCCL for cuda, gloo for cpu; lazily connected where it can be."""
        hook = sys.excepthook
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"{self.attempt}/group", self._connections.group),
            rank=self.rank,
            world_size=self.world_size,
            timeout=self._group_timeout,
        )
        if self.in_process:  # torch wraps it once more for each group: a rank's name a line and life
            sys.excepthook = hook

    def leave(self) -> None:
        """Destroy the default process group, where there is one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def starting(self, part: str, longest: timedelta) -> None:
        """A part of start-up begins, and takes at most `longest`."""
        if self.over:
            return
        self._starting = True
        self._presence.starting(part, longest.total_seconds())
        self._start_watch.starting(part, longest.total_seconds(), self.hung_at_start)

    def hung_at_start(self, error: StartHangError) -> None:
        """A part of this rank's start-up took too long; called in another thread."""
        raise_in_main_thread(error)

    def _started(self) -> None:
        """Nothing of the start-up is watched any more."""
        if self._starting:
            self._starting = False
            self._start_watch.started()
            # A rank that was reported from another thread is killed by its supervisor, unless its main thread answers.
            if self.start_hang is None:
                self._presence.started()

    def resumed(self, step: int) -> None:
        """The state is that after `step`."""
        self._started()
        self.step = step
        self._presence.step(step)
        if not self.in_process:
            with self.atomic():  # it starts threads
                self.first_step_begins()
            self.on_abort(self.first_step_over)

    def first_step_begins(self) -> None:
        """The first step of this process begins: its silence means nothing for `first_step` seconds."""
        if self.heartbeats is not None:
            self.heartbeats.vouch(self.first_step)

    def first_step_over(self) -> None:
        """Silence counts from now on. Any thread; does not block."""
        if self.heartbeats is not None:
            self.heartbeats.silence_counts()

    def heartbeat(self, step: int) -> None:
        """This rank has finished `step` and goes on."""
        self._started()  # from its first sign of life on the layer misses the next
        if step > self.step:
            self.first_step_over()
        if step > self.step and not self.progressed:  # the same step again: a sign of life in a long wait
            self.progressed = True
            self._presence.progressed()
        self.step = step
        self._presence.step(step)
        if self.heartbeats is not None:
            self.heartbeats.beat()

    def done(self) -> None:
        """The run is done on this rank. Here the layer sees to it when the training function returns."""

    def failing(self) -> None:
        """An exception is on its way out of this life."""
        self.fails = True

    def atomic(self) -> AbstractContextManager[Any]:
        """Nothing interrupts this layer's lives but their end."""
        return contextlib.nullcontext()

    def on_abort(self, hook: Callable[[], None]) -> None:
        """Run `hook` when a fault ends this life, before collectives are aborted; at once where one has already."""
        with self._over_lock:
            if not self._over.is_set():
                self._hooks.append(hook)
                return
        hook()

    def on_last_fault(self, hook: Callable[[], None]) -> None:
        """Run `hook` where a fault of this rank's own ends the run, ahead of `end`."""
        self._last_words.append(hook)

    def last_words(self) -> None:
        """A fault of this rank's own ends the run: run the hooks for that, unless another has ended this life.

        Raises:
            Exception: what a hook raised, after all others have run.
        """
        if self.over:
            return
        with contextlib.ExitStack() as stack:
            for hook in reversed(self._last_words):
                stack.callback(hook)

    @property
    def over(self) -> bool:
        """Whether a fault has ended this life; errors from now on only follow from it."""
        return self._over.is_set()

    def end(self, reason: str, *, own: bool) -> bool:
        """A fault ends this life: run the hooks, once, whichever thread comes first. False where it was over.

        Args:
            reason: what this rank knows of it.
            own: whether it is this rank's own fault, and not what follows from another's.

        Raises:
            Exception: what a hook raised, after all others have run.
        """
        with (
            self._over_lock
        ):  # whoever comes second returns only when the hooks have run: an abort may follow
            if self._over.is_set():
                return False
            self._over.set()
            self._started()
            with contextlib.ExitStack() as stack:
                for hook in reversed(self._hooks):
                    stack.callback(hook)
        self._ledger.record(FaultSeen(layer=self.layer, reason=reason, own=own))
        return True

    def cut(self, *, gloo: bool) -> None:
        """Make blocked store waits of this life raise, and gloo collectives where `gloo` says so."""
        self._connections.cut(gloo=gloo)
