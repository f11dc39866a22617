"""Findings as text for people, JSON, GitHub annotations or SARIF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from runner.recipe.node import Position
from runner.recipe.problems import Problem

_RED, _YELLOW, _BOLD, _BLUE, _OFF = "\033[31m", "\033[33m", "\033[1m", "\033[34m", "\033[0m"
_WIDEST = 100
_MOST_INVOLVED = 5


def text(problems: Sequence[Problem], *, color: bool = False) -> str:
    """A block a finding: the place, the line of the file with a marker under it, what is expected, what to do."""
    read = cache(_source)
    return "\n".join(_block(problem, color, read) for problem in problems)


def _source(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return []  # it was read a moment ago; the message stands without it


def _block(problem: Problem, color: bool, read: Callable[[str], list[str]]) -> str:
    def paint(code: str, words: str) -> str:
        return f"{code}{words}{_OFF}" if color else words

    tint = _RED if problem.severity == "error" else _YELLOW
    subject = f"{problem.path}: " if problem.path else ""
    kind = paint(tint, f"{problem.severity}[{problem.code}]")
    lines = [f"{paint(_BOLD, f'{problem.at}:')} {kind} {paint(_BOLD, subject + problem.message)}"]
    if not problem.secret:
        lines += _excerpt(problem.at, read, lambda marker: paint(tint, marker))
    if problem.also is not None and problem.also.line:
        lines.append(f"  see {problem.also}")
        lines += _excerpt(problem.also, read, lambda marker: paint(_BLUE, marker.replace("^", "-")))
    lines += _depends(problem)
    if problem.expected:
        lines.append(f"  expected: {problem.expected}")
    if problem.hint:
        lines.append(f"  {paint(_BLUE, 'help')}: {problem.hint}")
    return "\n".join(lines) + "\n"


def _depends(problem: Problem) -> list[str]:
    """The other settings that a finding depends on, in one line."""
    shown = {
        problem.path,
        *([] if problem.also is None else [p for p, at in problem.involved if at == problem.also]),
    }
    others = [f"{path} ({at.file.rpartition('/')[2]}:{at.line})" if at.line else f"{path} (--set)"
              for path, at in problem.involved if path not in shown]  # fmt: skip
    if not others:
        return []
    more = f" and {len(others) - _MOST_INVOLVED} more" if len(others) > _MOST_INVOLVED else ""
    return [f"  depends on: {', '.join(others[:_MOST_INVOLVED])}{more}"]


def _excerpt(at: Position, read: Callable[[str], list[str]], paint: Callable[[str], str]) -> list[str]:
    if not at.line:
        return []
    source = read(at.file)
    if at.line > len(source):
        return []
    line = source[at.line - 1]
    stop = at.end_column if at.end_line == at.line else len(line) + 1
    first = max(0, at.column - 1 - _WIDEST // 2) if len(line) > _WIDEST else 0
    shown = line[first : first + _WIDEST].replace("\t", " ")
    width = max(1, min(stop - at.column, len(shown) - (at.column - 1 - first)))
    gutter = str(at.line)
    blank = " " * len(gutter)
    return [f"  {gutter} | {shown}", f"  {blank} | {' ' * (at.column - 1 - first)}{paint('^' * width)}"]


def as_json(problems: Sequence[Problem]) -> str:
    """A list of objects; lines and columns count from 1, 0 where there is no place in a file."""
    import json  # text, the usual format, does without

    return json.dumps([_record(problem) for problem in problems], indent=2, ensure_ascii=False)


def _record(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "severity": problem.severity,
        "file": problem.at.file,
        "line": problem.at.line,
        "column": problem.at.column,
        "end_line": problem.at.end_line,
        "end_column": problem.at.end_column,
        "path": problem.path,
        "message": problem.message,
        "value": problem.value,
        "expected": problem.expected,
        "hint": problem.hint,
        "involved": [
            {"path": path, "file": at.file, "line": at.line, "column": at.column}
            for path, at in problem.involved
        ],
    }


def _sentence(problem: Problem) -> str:
    words = f"{problem.path}: {problem.message}" if problem.path else problem.message
    words += f"; expected {problem.expected}" if problem.expected else ""
    return words + (f"; {problem.hint}" if problem.hint else "")


def github(problems: Sequence[Problem]) -> str:
    """GitHub Actions workflow commands: annotations on the changed files."""
    return "\n".join(
        f"::{problem.severity} {_place(problem.at)}title={_property(problem.code)}::{_data(_sentence(problem))}"
        for problem in problems
    )


def _place(at: Position) -> str:
    if not at.line:
        return ""  # an override: there is no line to annotate
    return f"file={_property(at.file)},line={at.line},col={at.column},endLine={at.end_line},"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def sarif(problems: Sequence[Problem], *, version: str) -> str:
    """SARIF 2.1.0, for code scanning."""
    import json

    from runner.recipe.checks import RULES

    rules = []
    for code in sorted({problem.code for problem in problems}):
        title = (RULES[code].check.__doc__ or "").splitlines()[0] if code in RULES else "docs/rules.md"
        rules.append({"id": code, "shortDescription": {"text": title}})
    results = []
    for problem in problems:
        results.append(
            {
                "ruleId": problem.code,
                "level": problem.severity,
                "message": {"text": _sentence(problem)},
                "locations": [_location(problem.at)],
                "relatedLocations": [
                    _location(at) | {"message": {"text": path}} for path, at in problem.involved if at.line
                ],
            }
        )
    driver = {"name": "nvrx-run", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _location(at: Position) -> dict[str, Any]:
    region = {
        "startLine": max(1, at.line),
        "startColumn": max(1, at.column),
        "endLine": max(1, at.end_line),
        "endColumn": max(1, at.end_column),
    }
    artifact = {"uri": at.file.replace("\\", "/")}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
