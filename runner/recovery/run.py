"""`run_with_recovery`: the training function under the layer that the recipe names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import DistError

from runner.control.channel import Control, mark_children
from runner.control.earlier import decisive, earlier_launches
from runner.control.lastword import LastWord
from runner.control.presence import Presence
from runner.errors import ExitCode, MonitorGoneError, RunError, no_room
from runner.launch.budget import startup_pause
from runner.recipe import layer_settings
from runner.recipe.derived import uses_gpus
from runner.recipe.recipe import Recipe
from runner.recovery.awake import wake_gpu
from runner.recovery.direct import run_direct
from runner.recovery.ending import Coroner, Ending, describe, disk_full
from runner.recovery.ranks import RankFacts
from runner.recovery.setup import WorkerSetup
from runner.recovery.start_watch import StartWatch
from runner.streams import complain
from runner.system.process import started_at
from runner.train.ports import Life, LifeLedger

# What NVRx needs in the environment before the first process group (see docs/recovery.md).
_ENVIRONMENT = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0"}


def run_with_recovery(
    recipe: Recipe,
    train: Callable[[Life], None],
    ledger: LifeLedger,
    log: Any,
    presence: Presence | None = None,
) -> None:
    """Run `train` to its end under the recipe's recovery layer, in a worker that torchrun or ft_launcher started.

    Returns once the run is done on this rank.

    Args:
        presence: what has told the supervisor of this worker so far. Default: nothing has.

    Raises:
        SystemExit: the run is not done; the code is the product's exit code, and the reason is in the run's folder.
    """
    facts = RankFacts.from_environment()
    control = Control.from_environment()
    earlier = earlier_launches(recipe.run_folder, control)
    presence = presence or Presence(
        control.folder, rank=facts.rank, local_rank=facts.local_rank, restart=facts.restart
    )
    verdict = decisive(recipe.run_folder, control, earlier)
    if verdict is not None:  # a launcher that knows nothing of it started this process once more
        log.info("nothing left to do", reason=verdict.message)
        if verdict.exit_code == ExitCode.DONE:
            presence.finish(lambda: None, recipe.recovery.start_timeout.total_seconds())
        else:  # a supervisor that knows of it ends the launch
            presence.leave()
        return
    mark_children()
    last_word = LastWord(control.folder)
    coroner = Coroner(recipe.run_folder, recipe.recovery.layer, earlier, facts.restart, last_word)
    run_layer = _layer(recipe)
    if layer_settings.inprocess(recipe) is None and recipe.cluster.accelerator != "cpu":
        wake_gpu(facts.local_rank)
    presence.started()  # of its imports; the ranks meet: waits, each with a limit of its own
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        setup = WorkerSetup(
            recipe=recipe,
            facts=facts,
            run_folder=recipe.run_folder,
            gpus=uses_gpus(recipe, present=torch.cuda.is_available()),
            ledger=ledger,
            coroner=coroner,
            presence=presence,
            start_watch=StartWatch(),
            process_started=started_at(os.getpid()),
            log=log,
        )
        launcher = layer_settings.ft_launcher(recipe)
        if launcher is not None:
            setup.pause_before_start(
                startup_pause(launcher.startup_backoff.total_seconds(), presence.failed_starts())
            )
        ending = run_layer(setup, train)
    except MonitorGoneError as error:
        ending = coroner.monitor_gone(error, facts.rank)
        coroner.conclude(facts.rank, ending)
    except RunError as error:
        ending = Ending(int(error.exit_code), str(error), final=False)
        coroner.conclude(facts.rank, ending)
    except (
        DistError
    ) as error:  # before the ranks have met: rank 0 serves the store that the others did not find
        what = f"rank {facts.rank} did not meet the other ranks: {describe(error)}"
        ending = Ending(int(ExitCode.CRASHED), what, final=False, consequence=facts.rank != 0)
        coroner.conclude(facts.rank, ending)
    except OSError as error:  # before its first life
        if not no_room(error):
            raise
        ending = disk_full(facts.rank, 0, error, recipe.run_folder)
        coroner.conclude(facts.rank, ending)
    coroner.close()
    if presence.done or (ending is not None and not coroner.silenced):
        presence.ends(recipe.recovery.start_timeout.total_seconds())
    elif not coroner.silenced:  # given up by the others, which go on
        presence.leave()
    if ending is not None:
        say = log.info if ending.exit_code == ExitCode.PREEMPTED else log.error  # a stop was asked for
        say("worker ends", rank=facts.rank, reason=ending.message, exit_code=ending.exit_code)
        if ending.traceback:
            complain(ending.traceback)
        # Under a supervisor, which reads the outcome: a failed worker would make the launcher kill the ranks that are
        # still leaving.
        raise SystemExit(0 if ending.exit_code == ExitCode.PREEMPTED and control.folder else ending.exit_code)


def _layer(recipe: Recipe) -> Callable[[WorkerSetup, Callable[[Life], None]], Ending | None]:
    """What runs the training function; its imports are made here."""
    if layer_settings.inprocess(recipe) is None:
        return run_direct
    from runner.recovery.inprocess import InprocessLayer

    return lambda setup, train: InprocessLayer(setup, train).run()
