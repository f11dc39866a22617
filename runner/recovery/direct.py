"""The layers that run the training function once in a process: `none` under torchrun, `ft_launcher` alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from runner.recovery.ending import Coroner, Ending, WorkerExit, describe
from runner.recovery.life import Connections, ProcessLife
from runner.recovery.setup import WorkerSetup
from runner.recovery.start_watch import StartHang
from runner.train.ports import Life


class DirectLife(ProcessLife):
    """A life that is done as soon as it says so: nobody else has to agree.

    Attributes:
        when_done: called then, once.
        finished: whether it has been.
    """

    when_done: Callable[[], None] = staticmethod(lambda: None)
    finished = False

    def done(self) -> None:
        """The run is done on this rank, and nothing that follows changes that."""
        if not self.finished:
            self.when_done()
            self.finished = True


def run_direct(setup: WorkerSetup, train: Callable[[Life], None]) -> Ending | None:
    """Run the training function once. Returns how it ended where it did not finish."""
    facts = setup.facts
    with contextlib.ExitStack() as stack:
        heartbeats = setup.open_heartbeats()
        if heartbeats is not None:
            stack.callback(heartbeats.close)
        meeting = setup.meet()
        connections = Connections(meeting, serve=facts.rank == 0, timeout=setup.group_timeout)
        attempt = setup.agree_attempt(connections.control)
        life = DirectLife(
            rank=facts.rank,
            world_size=facts.world_size,
            facts=facts,
            attempt=attempt,
            in_process=False,
            connections=connections,
            group_timeout=setup.group_timeout,
            ledger=setup.ledger,
            layer=setup.layer,
            presence=setup.presence,
            start_watch=setup.start_watch,
            first_step=setup.recipe.recovery.start_timeout,
            heartbeats=heartbeats,
        )
        life.when_done = lambda: setup.life_finished(life)
        setup.life_started(life, iteration=0)
        try:
            train(life)
            life.done()
        except SystemExit as error:
            return _failed(setup, life, WorkerExit(f"sys.exit({error.code!r}) during training"))
        except KeyboardInterrupt:
            return _failed(setup, life, WorkerExit("SIGINT during training"))
        except StartHang as hang:
            return _failed(setup, life, hang.error)
        except Exception as error:  # noqa: BLE001 - judged, recorded and returned
            return _failed(setup, life, error)
        setup.leave(life)
    return None


def _failed(setup: WorkerSetup, life: DirectLife, error: BaseException) -> Ending | None:
    if life.finished:
        setup.failed_after_all(life, error)
        return None
    coroner: Coroner = setup.coroner
    ending = coroner.exception(life, error)
    if not ending.consequence and (ending.final or setup.layer == "none"):
        life.last_words()
    life.end(describe(error), own=not ending.consequence)
    setup.life_failed(life, ending)
    coroner.conclude(life, ending)
    return ending
