"""Where a folder of checkpoints and the run that owns it contradict each other, nothing is trained over.

All is for rank 0, which chooses the step that all start from. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint.record import looks_whole
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
        """
        if step <= self.steps:
            return False
        if self.steps in stored and looks_whole(checkpoints / f"step-{self.steps}"):
            return True
        none = "a damaged one" if self.steps in stored else "none"
        whole = [other for other in stored if other != self.steps]
        raise InputError(
            f"training.steps: {self.steps}, but the run is past it: {checkpoints} holds step "
            f"{', '.join(map(str, whole)) or 'none'}, and {none} of step {self.steps}; set training.steps to {step} "
            "(nothing is left to train then) or more, or name another output.folder"
        )
