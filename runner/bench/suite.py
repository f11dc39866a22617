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
is left out, aloud, where the machine has fewer).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.bench.mistakes import mistakes_of
from runner.errors import InputError
from runner.recipe.fields import Duration
from runner.recipe.text import read_regular
from runner.recipe.yaml import LARGEST_FILE

Fragment = dict[str, Any]
_NAME = r"^[a-z0-9][a-z0-9.+-]{0,40}$"
Name = Annotated[str, Field(pattern=_NAME)]


class Replace(dict[str, Any]):
    """A mapping that replaces what it is laid over (`!replace`)."""


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    pass


def _load_replace(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Replace:
    return Replace({str(key): value for key, value in loader.construct_mapping(node, deep=True).items()})


_Loader.add_constructor("!replace", _load_replace)
_Dumper.add_representer(Replace, lambda dumper, data: dumper.represent_mapping("!replace", data.items()))


class Value(BaseModel):
    """One value of an axis: a piece of a recipe, and how its cell is run."""

    model_config = ConfigDict(extra="allow", frozen=True)

    restart: Literal["never", "kubernetes"] = "never"
    """What happens when the run ends with a fault: nothing, or what a kubelet would do."""
    needs_gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs without which the cell is left out."""

    @property
    def fragment(self) -> Fragment:
        """The piece of a recipe."""
        return dict(self.__pydantic_extra__ or {})


class Experiment(BaseModel):
    """One matrix of cells."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    """Comes first in the names of its cells."""
    common: Fragment = {}
    """Laid over the recipe and the suite's `common`."""
    axes: Annotated[dict[str, dict[Name, Value]], Field(min_length=1)]
    """Axis -> value -> what it changes."""


class Suite(BaseModel):
    """A suite as its file declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    """Name of the suite; its results go to `bench/<name>` unless told otherwise."""
    recipe: str
    """The recipe that every cell starts from, relative to the suite's file."""
    common: Fragment = {}
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


@dataclass(frozen=True)
class Cell:
    """One run of a suite.

    Attributes:
        recipe: text of its recipe file, which extends the suite's recipe.
    """

    name: str
    experiment: str
    recipe: str
    restart: Literal["never", "kubernetes"]
    needs_gpus: int


def load_suite(path: Path) -> Suite:
    """Read a suite.

    Raises:
        InputError: it cannot be read, or declares something else than a suite; all mistakes at once.
    """
    try:
        text = read_regular(path, LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise InputError(f"{path}: is larger than {LARGEST_FILE} bytes, which no suite is")
        data = yaml.load(text.decode(), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if isinstance(data, dict) and "model" in data and "experiments" not in data:
        raise InputError(
            f"{path}: this is a recipe, not a suite: `nvrx-run {path}` runs it; docs/goodput.md shows a suite"
        )
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        root = yaml.compose(text.decode(), Loader=_Loader)
        raise InputError("\n".join(mistakes_of(error, path, root, {0: Suite, 2: Experiment}))) from error


def parse_override(text: str) -> Fragment:
    """`training.steps=500` as a piece of a recipe; the value is YAML.

    Raises:
        InputError: it is none.
    """
    key, equals, written = text.partition("=")
    keys = key.strip().split(".")
    try:
        value = yaml.load(written, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"--set {text}: the value is not YAML: {' '.join(str(error).split())}") from error
    if not equals or not all(keys):
        raise InputError(f"--set {text}: is no override; write section.key=value")
    for name in reversed(keys):
        value = {name: value}
    return dict(value)


def cells_of(suite: Suite, path: Path, out: Path, overrides: Sequence[Fragment] = ()) -> list[Cell]:
    """All cells in order.

    Args:
        path: the suite's file.
        out: the folder of its results.
        overrides: laid over every cell, last.
    """
    base = (path.parent / suite.recipe).resolve()
    if not base.is_file():
        raise InputError(f"{path}: recipe: {base} is not there; give a path relative to the suite's file")
    cells = []
    for experiment in suite.experiments:
        for combination in itertools.product(*(axis.items() for axis in experiment.axes.values())):
            for repeat in range(1, suite.repeats + 1):
                name = "-".join([experiment.name, *(value for value, _ in combination)])
                if suite.repeats > 1:
                    name += f"-{repeat}"
                fragment = lay_over(suite.common, experiment.common)
                for _, value in combination:
                    fragment = lay_over(fragment, value.fragment)
                for override in overrides:
                    fragment = lay_over(fragment, override)
                fragment = lay_over(
                    fragment, {"name": name, "output": {"folder": str((out / name / "run").resolve())}}
                )
                restarts = {value.restart for _, value in combination}
                cells.append(
                    Cell(
                        name=name,
                        experiment=experiment.name,
                        recipe=_recipe_text(base, fragment),
                        restart="kubernetes" if "kubernetes" in restarts else "never",
                        needs_gpus=max(value.needs_gpus for _, value in combination),
                    )
                )
    names = [cell.name for cell in cells]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"{path}: two cells are called {', '.join(double)}; rename an experiment or a value")
    return cells


def lay_over(below: Fragment, above: Fragment) -> Fragment:
    """`above` over `below`: mappings merge key by key, everything else, and `!replace`, replaces."""
    out = type(below)(below)
    for key, value in above.items():
        old = out.get(key)
        merge = isinstance(old, dict) and isinstance(value, dict) and not isinstance(value, Replace)
        out[key] = lay_over(old, value) if merge and old is not None else value
    return out


def _recipe_text(base: Path, fragment: Fragment) -> str:
    text = yaml.dump(fragment, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return f"# nvrx-run {{this file}}\nextends: {yaml.dump(str(base)).strip().splitlines()[0]}\n{text}"
