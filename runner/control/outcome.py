"""How a worker says, in a file, what its process ended with: launchers only pass on 0 or 1.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from runner.control.lastword import ROOM, LastWord, last_words
from runner.control.signs import start_of
from runner.errors import ExitCode, RunError
from runner.strictjson import parse
from runner.system.durable import write_durably

# These end the run whatever the recovery layer is: a restart would meet the same again, or is not allowed any more.
DECISIVE = frozenset(
    {
        ExitCode.BAD_RECIPE,
        ExitCode.NO_LOADABLE_CHECKPOINT,
        ExitCode.RESTART_BUDGET_SPENT,
        ExitCode.NO_PROGRESS,
        ExitCode.SAVE_FAILED,
        ExitCode.PREEMPTED,
    }
)


# What gloo, NCCL's watchdog, the store and our own agreements say when a rank does not come.
TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms|Watchdog caught collective operation timeout|wait timeout after|waited \S.* in vain"
)


NO_LIFE = "none-"  # begins the attempt of a worker that ended before its first life


@dataclass(frozen=True)
class Outcome:
    """What one worker process ended with.

    Attributes:
        exit_code: in the product's terms, whatever the process itself returns to its launcher.
        message: one line for the user.
        rank: of the worker.
        step: optimiser steps that the worker had seen finished.
        attempt: the life it belongs to.
        restart: how often its launcher had restarted the workers before.
        consequence: True where the error only follows from a fault elsewhere (a peer's connection was closed).
        traceback: the Python traceback, shown with `--verbose`.
        spent_by: where restarts in place are spent, the life whose fault spent the last; its records say what it was.
        launch_over: whether this launcher's restarts are no use, whatever the code; the next command's start is.
        time: wall clock, seconds.
    """

    exit_code: int
    message: str
    rank: int
    step: int
    attempt: str
    restart: int = 0
    consequence: bool = False
    traceback: str = ""
    spent_by: str = ""
    launch_over: bool = False
    time: float = field(default_factory=time.time)

    @property
    def decisive(self) -> bool:
        """Whether the run is over with this, so that no layer may start it again."""
        return self.exit_code in DECISIVE or self.launch_over


def outcome_folder(run_folder: Path) -> Path:
    """Where outcomes of a run lie."""
    return run_folder / "outcome"


def write_outcome(run_folder: Path, outcome: Outcome, last_word: LastWord | None = None) -> None:
    """Record what this worker ended with: in the run's folder, else in the room that it has reserved on its node.

    Raises:
        OSError: neither can be written.
    """
    name = f"{outcome.attempt}-rank{outcome.rank}-{os.getpid()}.json"
    text = json.dumps(asdict(outcome))
    try:
        write_durably(outcome_folder(run_folder) / name, text)
    except OSError:
        if len(text) > ROOM:
            text = json.dumps(asdict(replace(outcome, traceback="", message=outcome.message[:1000])))
        if last_word is None or not last_word.write(text):
            raise


def read_outcome(path: Path) -> Outcome | None:
    """The outcome in a file; None where it is not a worker's: those are written whole."""
    try:
        return parse_outcome(path.read_bytes())
    except OSError:
        return None


def parse_outcome(text: bytes) -> Outcome | None:
    """The outcome that a worker wrote; None where it is something else, or only half of it."""
    try:
        return Outcome(**parse(text))
    except (ValueError, TypeError):
        return None


class OutcomeReader:
    """Reads the outcomes that are written after it was made, by any node.

    What is there at that moment is of earlier launches, whatever the nodes' clocks say.

    Args:
        run_folder: of the run.
        control: the node's control folder, where workers write that could not write there.
    """

    def __init__(self, run_folder: Path, control: Path | None = None) -> None:
        self._folder, self._control = outcome_folder(run_folder), control
        self._folder.mkdir(parents=True, exist_ok=True)
        self._earlier = frozenset((*self._names(), *self._words()))
        self._read: dict[str, Outcome] = {}
        self._unreadable: set[str] = set()

    def outcomes(self) -> list[Outcome]:
        """All outcomes so far, oldest first.

        Raises:
            RunError: the run's folder was removed.
        """
        for name in self._names():
            if name not in self._earlier and name not in self._read and name not in self._unreadable:
                outcome = read_outcome(self._folder / name)
                if outcome is None:
                    self._unreadable.add(name)
                else:
                    self._read[name] = outcome
        for name, text in self._words().items():
            if name not in self._earlier and (said := parse_outcome(text)) is not None:
                self._read[name] = said
        return sorted(self._read.values(), key=lambda outcome: outcome.time)

    def _words(self) -> dict[str, bytes]:
        return last_words(self._control) if self._control is not None else {}

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if not name.startswith(".")]  # noqa: PTH208 - names
        except FileNotFoundError:
            raise RunError(
                f"{self._folder}: removed while the run went on; "
                "the same command begins from the newest checkpoint that is left"
            ) from None


def decide(outcomes: list[Outcome]) -> Outcome | None:
    """The outcome that speaks for the run: the first decisive one, else of the last start that has a cause the first.

    Where none has one, the first of all that is none: what the starts before it ended with has been mended.
    """
    decisive = [outcome for outcome in outcomes if outcome.decisive]
    causes = [outcome for outcome in outcomes if outcome.exit_code and not outcome.consequence]
    others = [outcome for outcome in outcomes if outcome.exit_code]
    if causes:
        causes = [outcome for outcome in causes if _same_start(outcome, causes[-1])]
    return next(iter([*decisive, *causes, *others, *outcomes[-1:]]), None)


def _same_start(one: Outcome, other: Outcome) -> bool:
    if one.attempt.startswith(NO_LIFE) or other.attempt.startswith(NO_LIFE):
        return one.restart == other.restart
    return start_of(one.attempt) == start_of(other.attempt)
