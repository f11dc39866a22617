"""Where a folder of checkpoints and the run that owns it contradict each other, nothing is trained over.

All is for rank 0, which chooses the step that all start from, and for an export. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoint.record import is_whole
from runner.errors import ExitCode, InputError, RunError
from runner.ledger.saves import newest_saved


@dataclass(frozen=True)
class OwnRun:
    """The run that checkpoints belong to.

    Attributes:
        folder: of the run.
        steps: `training.steps`, where it ends.
    """

    folder: Path
    steps: int

    def check_empty(self, checkpoints: Path) -> None:
        """There is no checkpoint: the run may start at step 0 if it has never saved one.

        Raises:
            RunError: NO_LOADABLE_CHECKPOINT where its ledger says that it has.
        """
        saved = newest_saved(self.folder)
        if saved:
            raise RunError(
                f"{checkpoints} holds no checkpoint, and the ledger of this run says that it has saved some, last of "
                f"step {saved}: bring one back, or set checkpoint.folder to where they are; to start over from step 0 "
                f"name another output.folder, or remove {self.folder / 'ledger'} too",
                ExitCode.NO_LOADABLE_CHECKPOINT,
            )

    def lost(self, step: int, set_aside: set[int]) -> int:
        """The step of a checkpoint newer than `step` that the ledger says was saved, 0 where there is none.

        It is told by nobody else unless it was `set_aside`: somebody has deleted it, or moved it away.
        """
        saved = newest_saved(self.folder)
        return saved if saved > step and saved not in set_aside else 0

    def check_end(self, step: int, stored: list[int], checkpoints: Path) -> bool:
        """The run goes on after `step`; `stored` are the steps of all checkpoints. True where that is past its end.

        Raises:
            InputError: it is, and there is no whole checkpoint of the step where the recipe ends.
            OSError: the file system does not say whether there is.
        """
        if step <= self.steps:
            return False
        if self.steps in stored and is_whole(checkpoints / f"step-{self.steps}"):
            return True
        none = "a damaged one" if self.steps in stored else "none"
        whole = [other for other in stored if other != self.steps]
        raise InputError(
            f"training.steps: {self.steps}, but the run is past it: {checkpoints} holds step "
            f"{', '.join(map(str, whole)) or 'none'}, and {none} of step {self.steps}; set training.steps to {step} "
            "(nothing is left to train then) or more, or name another output.folder"
        )


Described = Mapping[str, list[Any]]  # name -> [dtype, global shape]

_LONGEST = 60  # characters of a value in a message
_MODEL = "model."


def same_tensors(where: Path, stored: Described, mine: Described) -> None:
    """A checkpoint fits a recipe where it holds the tensors that the recipe asks for, and no others.

    Raises:
        InputError: it holds others.
    """
    names = sorted(mine.keys() ^ stored.keys())
    names += sorted(name for name in mine.keys() & stored.keys() if mine[name] != stored[name])
    if names:
        name = names[0]
        raise InputError(
            f"{where} was written for another model or optimiser: {len(names)} tensors differ, e.g. {name} is "
            f"{stored.get(name, 'absent')} there and {mine.get(name, 'absent')} in the recipe; choose "
            f"another checkpoint.folder or restore the model section"
        )


@dataclass(frozen=True)
class Changed:
    """Settings that do not show in the tensors and are not what they were; see `TrainState.decided`.

    Attributes:
        settings: each with its value before and now, in one line.
        effect: what follows from it.
    """

    settings: str
    effect: str


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changed | None:
    """What both know and call differently: neither an older record nor another release of a library is a change."""
    names = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    if not names:
        return None
    effects = []
    if any(name.startswith(_MODEL) for name in names):
        effects.append("the same weights may compute something else from here on")
    if not all(name.startswith(_MODEL) for name in names):
        effects.append("sequences may be met again or left out")
    settings = ", ".join(f"{name}: {_short(before[name])} -> {_short(now[name])}" for name in names)
    return Changed(settings, "; ".join(effects))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
