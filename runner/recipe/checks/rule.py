"""What a rule is, and the report that rules write to.

A rule relates settings that are right one by one. It has a number (never reused), a heading of the same number in
docs/rules.md, and a test that breaks exactly it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from runner.recipe.facts import Facts
from runner.recipe.node import Node, Path, Position, dotted, find, locate
from runner.recipe.problems import Problem, Severity
from runner.recipe.text import printable
from runner.recipe.view import Broken, Traced, View

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe

Check = Callable[["Recipe", "Report"], None]


class Rule(NamedTuple):
    """One numbered rule."""

    code: str
    severity: Severity
    check: Check


RULES: dict[str, Rule] = {}


def rule(code: str, severity: Severity = "error") -> Callable[[Check], Check]:
    """Register a check under a number."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"rule {code} is taken by {RULES[code].check.__name__}")
        RULES[code] = Rule(code, severity, check)
        return check

    return register


class Report:
    """Where the running rule says what it found."""

    __slots__ = ("facts", "problems", "root", "rule")

    rule: Rule

    def __init__(self, root: Node, facts: Facts) -> None:
        self.root = root
        self.facts = facts
        self.problems: list[Problem] = []

    def add(
        self,
        path: str | Path,
        message: str,
        hint: str | None = None,
        *,
        also: str | Path | None = None,
        expected: str | None = None,
        secret: bool = False,
    ) -> None:
        """One finding.

        Args:
            path: of the value to blame, dotted, or in parts where a key holds dots; where it is a default, `also` or
                its section is pointed at.
            message: what is wrong, with the values.
            hint: what to change.
            also: path of the other side.
            expected: what would be right.
            secret: the value must not be shown.
        """
        message = printable(message)  # a value in it may hold a line break; a finding's message is one line
        parts = _parts(path)
        node = find(self.root, parts)
        other = find(self.root, _parts(also)) if also else None
        value = f"`{printable(node.raw)}`" if node is not None and node.raw and not secret else None
        at = other.at if other and node is None else locate(self.root, parts)
        second = other.at if other and node else None
        severity = self.rule.severity
        self.problems.append(
            Problem(
                self.rule.code, at, dotted(parts), message, value, expected, hint, severity, second, secret
            )
        )


def _parts(path: str | Path) -> Path:
    if not isinstance(path, str):
        return path
    words = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(word) if word.isdecimal() else word for word in words)


def run_rules(view: View, root: Node) -> list[Problem]:
    """Every rule on one recipe, in the order of their numbers."""
    problems: list[Problem] = []
    facts = Facts(cast("Recipe", view))
    report = Report(root, facts)
    for rule in sorted(RULES.values()):
        report.rule = rule
        try:  # noqa: SIM105 - suppress takes as long as the rule
            rule.check(facts.recipe, report)
        except Broken:
            pass  # what the rule looks at has a problem that is reported already
        if report.problems:
            involved = _involved(view, root, rule)
            problems += [problem._replace(involved=involved) for problem in report.problems]
            report.problems = []
    return problems


def _involved(view: View, root: Node, rule: Rule) -> tuple[tuple[str, Position], ...]:
    """The written settings that a rule looks at, found by running it again on a view that takes notes."""
    seen: dict[Path, None] = {}
    facts = Facts(cast("Recipe", Traced(view, (), seen)))
    with suppress(Broken):
        report = Report(root, facts)
        report.rule = rule
        rule.check(facts.recipe, report)
    nodes = [(path, find(root, path)) for path in seen]
    empty = dict.fromkeys(path[:end] for path, node in nodes if node is None for end in range(len(path)))
    nodes += [(path, node) for path in empty if (node := find(root, path)) is not None and node.value == {}]
    leaves = [
        (path, node)
        for path, node in nodes
        if node is not None and (not _entered(path, seen) or not node.value)
    ]
    below = [
        found for path, node in leaves for found in node.walk(path) if not found[1].value or found[1].raw
    ]
    return tuple(dict.fromkeys((dotted(path), node.at) for path, node in below))


def _entered(path: Path, seen: dict[Path, None]) -> bool:
    return any(len(other) > len(path) and other[: len(path)] == path for other in seen)
