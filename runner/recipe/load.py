"""`load_recipe`: from a file to a checked recipe, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runner.recipe.checks import check
from runner.recipe.layers import read_layers
from runner.recipe.node import Node, Position, dotted, locate
from runner.recipe.problems import Problem, RecipeErrors
from runner.recipe.table import table
from runner.recipe.typecheck import TypeChecker
from runner.recipe.view import View

if TYPE_CHECKING:
    from runner.recipe.recipe import Recipe


class LoadedRecipe:
    """A recipe that passed every check.

    Attributes:
        path: the file, as given.
        root: the recipe as written, `extends` and overrides applied.
        view: what the rules saw: attribute access like `recipe`, without pydantic.
        warnings: what is legal but unwise.
    """

    def __init__(self, path: Path, root: Node, view: View, warnings: tuple[Problem, ...]) -> None:
        self.path = path
        self.root = root
        self.view = view
        self.warnings = warnings

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as pydantic models; made when first asked for.

        Raises:
            RecipeErrors: pydantic refuses what the table accepted (a setting with a constraint of its own).
        """
        from pydantic import ValidationError

        from runner.recipe.recipe import Recipe

        try:
            return Recipe.model_validate(self.root.plain())
        except ValidationError as error:
            problems = []
            for item in error.errors(include_url=False):
                path = tuple(item["loc"])
                problems.append(Problem("T203", locate(self.root, path), dotted(path), item["msg"]))
            raise RecipeErrors(problems) from None

    @cached_property
    def positions(self) -> Mapping[str, Position]:
        """Dotted path -> where its value is written; only what is written."""
        return {dotted(path): node.at for path, node in self.root.walk() if path}


def check_file(
    path: str | Path, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[LoadedRecipe | None, list[Problem]]:
    """Every problem of one recipe file, errors and warnings, and the recipe where there is no error."""
    path = Path(path)
    try:
        root, problems = read_layers(path, overrides, environment)
    except RecipeErrors as error:
        return None, list(error.problems)
    return check_tree(path, root, problems)


def check_tree(
    path: Path, root: Node, found: Sequence[Problem] = ()
) -> tuple[LoadedRecipe | None, list[Problem]]:
    """`check_file` of what has been read: the recipe as written, and what was found while it was read."""
    checker = TypeChecker(table())
    view = checker.recipe(root)
    problems = [*found, *checker.problems]
    problems += check(view, root)
    problems.sort(key=lambda problem: (problem.at.file, problem.at.line, problem.at.column))
    loaded = None
    if not any(problem.severity == "error" for problem in problems):
        warnings = tuple(problem for problem in problems if problem.severity == "warning")
        loaded = LoadedRecipe(path, root, view, warnings)
    return loaded, problems


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> LoadedRecipe:
    """Read and check a recipe.

    Args:
        path: YAML file.
        overrides: `section.key=value` texts, as of `--set`.
        environment: for `${VAR}`; the process's own by default.

    Raises:
        RecipeErrors: everything that is wrong, at once.
    """
    loaded, problems = check_file(path, overrides, environment)
    if loaded is None:
        raise RecipeErrors([problem for problem in problems if problem.severity == "error"])
    return loaded


def read_resolved(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe that was checked where the run started: what `runner.recipe.resolve.dump` wrote.

    Where workers are started by hand, with the command of `--emit-command`, it is the recipe as its author wrote it,
    with `overrides` and with `${NAME}` filled in; in what `dump` wrote none is left.

    Types are checked again; the rules are not: they speak about the recipe as its author wrote it, and a path that is
    right on this machine need not be so in the pods that it also describes.

    Raises:
        RecipeErrors: the file is not what was written.
    """
    root, problems = read_layers(Path(path), overrides)
    checker = TypeChecker(table())
    view = checker.recipe(root)
    if problems or checker.problems:
        raise RecipeErrors([*problems, *checker.problems])
    return LoadedRecipe(Path(path), root, view, ()).recipe
