"""`nvrx-run --validate`: many recipes, every finding of each once, and one verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner import __version__
from runner.errors import InputError
from runner.recipe.load import check_file
from runner.recipe.problems import Problem


@dataclass(frozen=True)
class Validation:
    """What was found.

    Attributes:
        files: the recipes that were checked.
        problems: errors and warnings of all of them.
        failed: recipes that have an error.
    """

    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    failed: int


def validate(names: Sequence[str], overrides: Sequence[str], *, strict: bool) -> Validation:
    """Check recipes; a folder stands for the .yaml and .yml files in it.

    Args:
        overrides: `section.key=value`, applied to each recipe.
        strict: warnings are errors.

    Raises:
        InputError: a folder has no recipe.
    """
    files = [file for name in names for file in _recipe_files(name)]
    problems: list[Problem] = []
    failed = 0
    for path in files:
        loaded, found = check_file(path, overrides)
        if strict:
            found = [problem._replace(severity="error") for problem in found]
        problems += found
        failed += loaded is None or (strict and bool(found))
    once = dict.fromkeys(problems)  # recipes that extend the same one share its findings
    return Validation(tuple(files), tuple(once), failed)


def _recipe_files(name: str) -> list[str]:
    if not Path(name).is_dir():
        return [name]
    inside = sorted(str(path) for path in Path(name).iterdir() if path.suffix in (".yaml", ".yml"))
    if not inside:
        raise InputError(f"{name}: no .yaml or .yml file is in this folder; name the folder that has them")
    return inside


def findings(result: Validation, format: str, *, color: bool) -> str:
    """The findings as `text`, `json`, `github` annotations or `sarif`."""
    problems = list(result.problems)
    if format == "text":
        return (_text(problems, color) if problems else "") + _verdict(result)
    from runner.recipe import render

    writers: dict[str, Callable[[], str]] = {
        "json": lambda: render.as_json(problems),
        "github": lambda: render.github(problems),
        "sarif": lambda: render.sarif(problems, version=__version__),
    }
    output = writers[format]()
    return output + "\n" if output else ""


def _text(problems: list[Problem], color: bool) -> str:
    from runner.recipe import render

    return render.text(problems, color=color) + "\n"


def _verdict(result: Validation) -> str:
    errors = sum(problem.severity == "error" for problem in result.problems)
    warnings = len(result.problems) - errors
    counts = f" ({_many(errors, 'error')}, {_many(warnings, 'warning')})" if result.problems else ""
    alone = len(result.files) == 1
    verdict = "valid" if not result.failed else "failed" if alone else f"{result.failed} failed"
    return f"{result.files[0] if alone else _many(len(result.files), 'recipe')}: {verdict}{counts}\n"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
