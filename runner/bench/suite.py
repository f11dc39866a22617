"""A suite: one recipe, and the changes to it whose combinations are measured side by side.

    name: laptop
    recipe: ../quickstart.yaml          # relative to the suite
    common: {training: {steps: 60}}     # laid over the recipe in every cell
    experiments:
      - name: saves
        axes:                           # a cell for each combination
          mode:
            sync: {checkpoint: {mode: sync}}
            async: {checkpoint: {mode: async}}
          every:
            every10: {checkpoint: {every: 10}}
            every30: {checkpoint: {every: 30}}

What stands under a value is a piece of a recipe; `!replace` before a section replaces it instead of merging. Besides
the recipe's sections a value may hold `restart: kubernetes` (see `runner.bench.kubelet`) and `needs_gpus: N` (the cell
is left out, aloud, where the machine has fewer). A suite is read as strictly as a recipe is (docs/checking.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.bench.mistakes import mistakes_of
from runner.errors import InputError
from runner.recipe.fields import Duration
from runner.recipe.node import Doubtful, Entry, Node, Position, Unknown, dotted
from runner.recipe.problems import Problem, RecipeErrors
from runner.recipe.words import doubt_hint
from runner.recipe.yaml import Form, read_file

LONGEST = 52  # of a run's name
Name = Annotated[str, Field(pattern=rf"^[a-z0-9]([a-z0-9-]{{0,{LONGEST - 2}}}[a-z0-9])?$")]
_SUITE = Form("suite", "a mapping: name, recipe, experiments, ...")
OWN = ("restart", "needs_gpus")  # keys of a value that are no recipe's
GIVEN = (("name",), ("output", "folder"))  # what each cell gets one of its own of


class Value(BaseModel):
    """One value of an axis: a piece of a recipe, and how its cell is run."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    restart: Literal["never", "kubernetes"] = "never"
    """What happens when the run ends with a fault: nothing, or what a kubelet would do."""
    needs_gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs without which the cell is left out."""


class Experiment(BaseModel):
    """One matrix of cells."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    """Comes first in the names of its cells."""
    common: dict[str, Any] = {}
    """Laid over the recipe and the suite's `common`."""
    axes: Annotated[
        dict[str, Annotated[dict[Name, Value], Field(min_length=1)]],
        Field(min_length=1),
    ]
    """Axis -> value -> what it changes."""


class Suite(BaseModel):
    """A suite as its file declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    """Name of the suite; its results go to `bench/<name>` unless told otherwise."""
    recipe: str
    """The recipe that every cell starts from, relative to the suite's file."""
    common: dict[str, Any] = {}
    """Laid over the recipe in every cell."""
    repeats: Annotated[int, Field(ge=1, le=20)] = 1
    """How often each cell runs."""
    timeout: Duration = timedelta(hours=1)
    """Longest a cell may take, restarts included; it is stopped and counts as failed."""
    max_restarts: Annotated[int, Field(ge=0)] = 20
    """Restarts of a cell with `restart: kubernetes`."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of finished cells."""
    experiments: Annotated[list[Experiment], Field(min_length=1)]
    """The matrices, run in this order."""


class SuiteFile(NamedTuple):
    """A suite, and its file as written, which knows the place of everything in it."""

    path: Path
    suite: Suite
    root: Node


def load_suite(path: Path) -> SuiteFile:
    """Read a suite.

    Raises:
        InputError: it cannot be read, or declares something else than a suite; all mistakes at once.
    """
    try:
        root, problems = read_file(path, str(path), form=_SUITE)
    except RecipeErrors as error:
        raise InputError("\n".join(told(problem) for problem in error.problems)) from error
    if "model" in root.value and "experiments" not in root.value:
        raise InputError(
            f"{path}: this is a recipe, not a suite: `nvrx-run {path}` runs it; docs/goodput.md shows a suite"
        )
    mistakes = [told(problem) for problem in [*problems, *_doubts(root), *_not_theirs(root)]]
    suite = None
    try:
        suite = Suite.model_validate(root.plain())
    except ValidationError as error:
        mistakes += mistakes_of(error, path, root, {0: Suite, 2: Experiment})
    if mistakes or suite is None:
        raise InputError("\n".join(mistakes))
    return SuiteFile(path, suite, root)


def told(problem: Problem) -> str:
    """A finding in one line, without the number of a recipe's rule."""
    return problem.line().replace(f" error[{problem.code}]", "", 1)


def fragments(root: Node) -> list[tuple[tuple[str | int, ...], Node]]:
    """Every piece of a recipe in a suite, with its path; what is no mapping is somebody else's to complain about."""
    found: list[tuple[tuple[str | int, ...], Node | None]] = [(("common",), root.child("common"))]
    experiments = root.child("experiments")
    for number, experiment in enumerate(
        experiments.value if experiments is not None and isinstance(experiments.value, list) else []
    ):
        found.append((("experiments", number, "common"), experiment.child("common")))
        axes = experiment.child("axes")
        for axis, values in _entries(axes):
            for value, entry in _entries(values.node):
                found.append((("experiments", number, "axes", axis, value), _without_own(entry.node)))
    return [(path, node) for path, node in found if node is not None and isinstance(node.value, dict)]


def _entries(node: Node | None) -> list[tuple[str, Entry]]:
    return list(node.value.items()) if node is not None and isinstance(node.value, dict) else []


def _without_own(node: Node) -> Node:
    if not isinstance(node.value, dict):
        return node
    kept = {key: entry for key, entry in node.value.items() if key not in OWN}
    return Node(kept, node.at, size=node.size, replaces=node.replaces)


def _doubts(root: Node) -> list[Problem]:
    """Values of the suite itself that YAML readers disagree about; those of recipes are told with the recipe."""
    theirs = [path for path, _ in fragments(root)] + _strange(root)
    expected = {"name": "text", "recipe": "text", "restart": "text", "keep_checkpoints": "true or false"}
    return [
        Problem("Y000", node.at, dotted(path), f"YAML readers disagree about `{node.raw}`",
                hint=doubt_hint(node.value, expected.get(str(path[-1]), "")))
        for path, node in root.walk()
        if isinstance(node.value, Doubtful) and not isinstance(node.value, Unknown)
        and (path[-1] in OWN or not any(path[: len(other)] == other for other in theirs))
    ]  # fmt: skip


def _strange(root: Node) -> list[tuple[str | int, ...]]:
    """Keys that no suite has, which is said of them; what is below a misspelt `axes` may be right."""
    found: list[tuple[str | int, ...]] = [
        (key,) for key, _ in _entries(root) if key not in Suite.model_fields
    ]
    experiments = root.child("experiments")
    for number, experiment in enumerate(
        experiments.value if experiments is not None and isinstance(experiments.value, list) else []
    ):
        known = Experiment.model_fields
        found += [("experiments", number, key) for key, _ in _entries(experiment) if key not in known]
    return found


def _not_theirs(root: Node) -> list[Problem]:
    """Settings that every cell gets from here."""
    found = []
    for path, fragment in fragments(root):
        for own in GIVEN:
            at = _place(fragment, own)
            if at is not None:
                found.append(given(at, (*path, *own)))
    return found


def _place(node: Node, path: Sequence[str]) -> Position | None:
    """Where the key at the end of a path is written; None where it is not, or with null, which takes a value away."""
    at = None
    for part in path:
        entry = node.value.get(part) if isinstance(node.value, dict) else None
        if entry is None:
            return None
        at, node = entry.key_at, entry.node
    return at if node.value is not None else None


def given(at: Position, path: Sequence[str | int]) -> Problem:
    """What is wrong with a setting that every cell gets from the suite."""
    what = "name" if path[-1] == "name" else "folder"
    return Problem("Y000", at, dotted(tuple(path)), f"every cell's run gets a {what} of its own",
                   hint="leave it out" + ("; --out says where all of them go" if what == "folder" else ""))  # fmt: skip
