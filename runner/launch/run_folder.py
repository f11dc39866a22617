"""The run's folder: who may use it, what is in it, and whether the run in it is done."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from runner.checkpoint.contradiction import OwnRun
from runner.checkpoint.record import looks_whole
from runner.errors import ExitCode, InputError, RunError, no_room
from runner.launch.owner import RUN, Owner, claim, identity
from runner.ledger.finish import mark_finished, read_finish, settings_of
from runner.recipe.derived import RUN_PARTS
from runner.recipe.difference import differences
from runner.recipe.recipe import Recipe
from runner.recipe.resolve import dump
from runner.system.durable import write_durably
from runner.system.lock import Held, take_lock

RECIPE = "recipe.yaml"
_ELSEWHERE = "for another run name another output.folder"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, and a run keeps a folder there; move it away")


def _holds_nothing(checkpoints: Path) -> bool:
    """Whether no step has left anything in a folder of checkpoints; not where it cannot be read."""
    try:
        return not any(name.startswith("step-") for name in os.listdir(checkpoints))  # noqa: PTH208 - names
    except FileNotFoundError:
        return True
    except OSError:
        return False


class RunFolder:
    """The folder of one run, locked for this node.

    Args:
        recipe: resolved: paths are absolute.
        node_rank: nodes of a run share the folder, each with a lock of its own.
        patience: seconds to wait for a lock that another command holds. A node that was lost keeps its lock until the
            file system has noticed; with patience, a lock that stays is no fault of the recipe.

    Raises:
        InputError: the folder cannot be made or written, or another command uses it.
        RunError: another command still uses it after `patience`; the disk is full.
    """

    def __init__(self, recipe: Recipe, node_rank: int, *, patience: float = 0.0) -> None:
        self.path = recipe.run_folder
        self._recipe = recipe
        self._node_rank = node_rank
        self._patience = patience
        self._lock: BinaryIO | None = None
        self._checkpoints: BinaryIO | None = None
        try:
            for place in (self.path, *self.path.parents):
                _check_folder(place)
            self.path.mkdir(parents=True, exist_ok=True)
            for name in RUN_PARTS:
                _check_folder(self.path / name)
            self.logs.mkdir(exist_ok=True)
            self._lock = self._locked(self.path / f".lock-node{node_rank}")
        except OSError as error:
            if no_room(error):
                raise RunError(
                    f"output.folder: {self.path}: {error.strerror}; make room, then run the same command",
                    ExitCode.SAVE_FAILED,
                ) from error
            raise InputError(
                f"output.folder: {self.path} cannot be used: {error.strerror or error}; "
                "name a folder that can be written"
            ) from error

    def _locked(self, path: Path) -> BinaryIO:
        try:
            return take_lock(path, self._patience)
        except Held as held:
            raise RunError(
                f"output.folder: {self.path} is in use by another nvrx-run ({held.holder}); "
                "wait for it, or give this run a folder of its own",
                ExitCode.CRASHED if self._patience else ExitCode.BAD_RECIPE,
            ) from None

    def claim_checkpoints(self) -> None:
        """Keep other runs out of the checkpoint folder, wherever it is, until `close`; before anything is launched.

        Raises:
            InputError: it is another run's, or it cannot be used.
            RunError: another command uses it; the disk is full.
        """
        if self._checkpoints is None:
            self._checkpoints = claim(
                self._recipe.checkpoint_folder,
                Owner(identity(self.path, self.run_id), str(self.path)),
                also=self.run_id,
                leads=self._node_rank == 0,
                patience=self._patience,
            )

    @property
    def logs(self) -> Path:
        """Where logs go."""
        return self.path / "logs"

    @property
    def run_id(self) -> str:
        """Names what the run keeps outside its folder (shared memory): the same whenever the folder is."""
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:10]
        return f"{self._recipe.name}-{digest}"

    def write_recipe(self) -> Path:
        """The resolved recipe, for the workers; returns its path."""
        run = {
            "name": self._recipe.name,
            "run_id": self.run_id,
            "owner": identity(self.path, self.run_id),
        }
        write_durably(self.path / RUN, json.dumps(run))
        path = self.path / RECIPE
        text = dump(self._recipe)
        if _text(path) != text:
            write_durably(path, text)
        return path

    def next_log(self) -> Path:
        """A file for what the launcher prints, numbered by the command."""
        taken = [
            int(match[1])
            for path in self.logs.iterdir()
            if (match := re.fullmatch(r"launcher-(\d+)(?:-node\d+)?\.log", path.name))
        ]
        node = f"-node{self._node_rank}" if self._recipe.cluster.nodes > 1 else ""
        return self.logs / f"launcher-{max(taken, default=0) + 1}{node}.log"

    def mark_finished(self) -> None:
        """Remember that the run is done."""
        mark_finished(self._recipe)

    def finished(self) -> str:
        """What is there, in words, where the run is done already and the checkpoint of its last step is still whole.

        Nothing where it is not: a launch then says what is wrong with it, and goes on from the one before. Where the
        recipe ends ahead of what was trained, only a checkpoint of that very step is the end of the run. A run that was
        closed is done without a checkpoint, too.
        """
        finish, end = read_finish(self.path), self._recipe.training.steps
        checkpoint = self._recipe.checkpoint_folder / f"step-{end}"
        if finish is None or finish.steps < end:
            return ""
        if looks_whole(checkpoint):
            further = f" (the run went on to step {finish.steps})" if finish.steps > end else ""
            done = f"finished already: {checkpoint} is there{further}, nothing to do"
        elif finish.closed and finish.steps == end:
            done = f"finished already, nothing to do: {finish.closed}"
        else:
            return ""
        changed = differences(finish.settings, settings_of(self._recipe))
        if changed:
            return (
                f"{done}; but the recipe is not the one that it finished with, and this was not trained: {changed}; "
                f"{_ELSEWHERE}"
            )
        return f"{done}; {_ELSEWHERE if finish.closed else 'training.steps raises the end'}"

    def check_may_go_on(self) -> None:
        """Before anything is launched or added to the ledger: a run that has saved needs what it saved to go on.

        Where several nodes see the folder, their ranks decide: what one of them does not see may be there for another.

        Raises:
            InputError: the run is closed.
            RunError: NO_LOADABLE_CHECKPOINT where its ledger says that it has saved, and nothing is there.
        """
        finish = read_finish(self.path)
        if finish is not None and finish.closed:
            raise InputError(f"{self.path}: closed at step {finish.steps}: {finish.closed}; {_ELSEWHERE}")
        checkpoints = self._recipe.checkpoint_folder
        if self._recipe.cluster.nodes == 1 and _holds_nothing(checkpoints):
            OwnRun(self.path, self._recipe.training.steps).check_empty(checkpoints)

    def close(self) -> None:
        """Give the folders back."""
        for lock in (self._checkpoints, self._lock):
            if lock is not None:
                lock.close()
