"""What a step reports, to the log, to the ledger and to the eye."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import structlog

from runner.ledger.events import StepEnded
from runner.recipe.recipe import Recipe
from runner.train.ports import Ledger


class StepReporter:
    """Writes each finished step to the ledger, the log and, on a terminal, a progress bar.

    Args:
        recipe: steps, log interval, progress setting.
        ledger, log: where it goes.
        rank: only rank 0 logs and draws.
    """

    def __init__(self, recipe: Recipe, ledger: Ledger, log: structlog.stdlib.BoundLogger, rank: int) -> None:
        self._ledger, self._log, self._leader = ledger, log, rank == 0
        self._every, self._steps = recipe.training.log_every, recipe.training.steps
        setting = recipe.output.progress
        self._bar: Any = None
        self._task: Any = None
        if self._leader and (setting == "on" or (setting == "auto" and sys.stdout.isatty())):
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )  # fmt: skip
            self._task = self._bar.add_task("", total=self._steps)

    def __enter__(self) -> StepReporter:
        self._draw("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("stop")

    def _draw(self, what: str, *arguments: Any, **fields: Any) -> None:
        """One call of the bar, for as long as there is a terminal: one that was closed must not end a run."""
        if self._bar is not None:
            try:
                getattr(self._bar, what)(*arguments, **fields)
            except OSError:
                self._bar = None

    def step(self, event: StepEnded) -> None:
        """Report one finished step."""
        self._ledger.record(event)
        if not self._leader:
            return
        rate = event.tokens / event.seconds if event.seconds > 0 else 0.0
        told = f"loss {event.loss:.3f}  {rate:,.0f} tok/s"
        self._draw("update", self._task, completed=event.step, description=told)
        if event.step % self._every == 0 or event.step == self._steps:
            self._log.info(
                "step",
                step=event.step,
                loss=round(event.loss, 4),
                lr=float(f"{event.lr:.3g}"),
                grad_norm=None if event.grad_norm is None else round(event.grad_norm, 3),
                tokens_per_s=round(rate),
                seconds=round(event.seconds, 4),
                stalled=round(event.stalled, 4),
            )
