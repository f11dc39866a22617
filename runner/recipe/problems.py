"""What is wrong with a recipe: one `Problem` a finding, all of them in one `RecipeErrors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from runner.errors import InputError
from runner.recipe.node import Position

Severity = Literal["error", "warning"]


class Problem(NamedTuple):
    """One finding.

    Attributes:
        code: number of the rule, a heading of docs/rules.md.
        at: of the offending key or value.
        path: dotted path, e.g. `recovery.inprocess.soft_timeout`; empty for the file as a whole.
        message: what is wrong, in a clause, with the values that matter.
        value: the value as written, where there is one.
        expected: what would be right.
        hint: what to change.
        involved: path and place of every written setting that the finding depends on.
        secret: the value is a credential: the line it stands on is not shown.
        also: a second place that matters (the other duplicate key, the other side of a rule).
    """

    code: str
    at: Position
    path: str
    message: str
    value: str | None = None
    expected: str | None = None
    hint: str | None = None
    severity: Severity = "error"
    also: Position | None = None
    secret: bool = False
    involved: tuple[tuple[str, Position], ...] = ()

    def line(self) -> str:
        """Everything in one line: `file:3:5: error[R101] path: message; expected ...; hint`."""
        text = f"{self.at}: {self.severity}[{self.code}] "
        text += f"{self.path}: {self.message}" if self.path else self.message
        if self.value is not None and self.value not in self.message:
            text += f", got {self.value}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            text += f"; {self.hint}"
        return text


class RecipeErrors(InputError):
    """Everything that is wrong with one recipe (exit code 2)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(problem.line() for problem in problems))
        self.problems = tuple(problems)
