"""The cells of a suite: for each combination of its values one recipe, with all that is laid over it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.bench.suite import GIVEN, LONGEST, SuiteFile, fragments, given, told
from runner.errors import InputError
from runner.recipe.layers import assign, merge, override, read_layers
from runner.recipe.node import Node, Position
from runner.recipe.problems import Problem
from runner.recipe.resolve import dump_tree


@dataclass(frozen=True)
class Cell:
    """One run of a suite.

    Attributes:
        recipe: text of its recipe file: the suite's recipe with all that is laid over it, in one.
        tree: the same, each value with the place where it is written.
        found: what was found wrong while it was read.
    """

    name: str
    experiment: str
    recipe: str
    restart: Literal["never", "kubernetes"]
    needs_gpus: int
    tree: Node | None = field(default=None, compare=False, repr=False)
    found: tuple[Problem, ...] = field(default=(), compare=False, repr=False)


def cells_of(file: SuiteFile, out: Path, overrides: Sequence[str] = ()) -> list[Cell]:
    """All cells in order.

    Args:
        file: the suite.
        out: the folder of its results.
        overrides: `section.key=value`, applied to every cell, last.

    Raises:
        InputError: the recipe cannot be read, cells cannot be told apart, or an override names what is theirs.
    """
    path, suite, root = file
    base = Path(os.path.normpath(path.parent / suite.recipe))
    if not base.is_file():
        raise InputError(f"{path}: recipe: {base} is not there; give a path relative to the suite's file")
    below, found = read_layers(base, ())
    pieces = dict(fragments(root))
    cells = []
    for number, experiment in enumerate(suite.experiments):
        lowest = [pieces.get(("common",)), pieces.get(("experiments", number, "common"))]
        for combination in itertools.product(*(axis.items() for axis in experiment.axes.values())):
            names = [name for name, _ in combination]
            places = [
                ("experiments", number, "axes", *pair) for pair in zip(experiment.axes, names, strict=True)
            ]
            tree = below
            for piece in (*lowest, *map(pieces.get, places)):
                tree = merge(tree, piece) if piece is not None else tree
            problems = list(found)
            for text in overrides:
                tree = _overridden(tree, text, problems)
            for repeat in range(1, suite.repeats + 1):
                name = "-".join([experiment.name, *names])
                if suite.repeats > 1:
                    name += f"-{repeat}"
                restarts = {value.restart for _, value in combination}
                mine = _as_a_run(tree, name, out)
                cells.append(
                    Cell(
                        name=name,
                        experiment=experiment.name,
                        recipe=f"# nvrx-run {{this file}}\n{dump_tree(mine)}",
                        restart="kubernetes" if "kubernetes" in restarts else "never",
                        needs_gpus=max(value.needs_gpus for _, value in combination),
                        tree=mine,
                        found=tuple(problems),
                    )
                )
    _refuse_names([cell.name for cell in cells], path)
    return cells


def _overridden(tree: Node, text: str, problems: list[Problem]) -> Node:
    target = tuple(text.partition("=")[0].strip().split("."))
    if target in GIVEN:
        raise InputError(told(given(Position(f"--set {text}", 0, 0, 0, 0), target)))
    return override(tree, text, problems)


def _as_a_run(tree: Node, name: str, out: Path) -> Node:
    """The recipe with the name and the folder of a cell's run."""
    nowhere = Position("nvrx-bench", 0, 0, 0, 0)
    for target, text in ((("name",), name), (("output", "folder"), str((out / name / "run").resolve()))):
        holder = tree.child(target[0]) if len(target) > 1 else tree
        if holder is None or holder.value is None or isinstance(holder.value, dict):  # else the check says so
            tree = assign(tree, target, Node(text, nowhere, text), nowhere)
    return tree


def _refuse_names(names: list[str], path: Path) -> None:
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"{path}: two cells are called {', '.join(double)}; rename an experiment or a value")
    long = [name for name in names if len(name) > LONGEST]
    if long:
        raise InputError(
            f"{path}: cell {long[0]}: a run's name has at most {LONGEST} characters, and this has {len(long[0])}; "
            "shorten the name of the experiment or of a value"
        )
