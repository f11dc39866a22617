"""A recipe made independent of where it was written: absolute paths, every default spelled out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from runner.recipe.dataset import FilesDataset, SavedDataset
from runner.recipe.node import Doubtful, Node
from runner.recipe.recipe import Recipe
from runner.recipe.scalars import read_plain


def resolve(recipe: Recipe, *, cwd: Path) -> Recipe:
    """The recipe with absolute paths: run folder, checkpoint folder, data, and models and tokenizers that are folders.

    A model or tokenizer name is a folder where it starts with `/`, `./`, `../` or `~`, or where a folder of that name
    is below `cwd`; otherwise it is a hub id and stays. After this, a name that starts with `/` is a folder.
    """

    def absolute(text: str) -> str:
        return str(_normal(cwd / Path(text).expanduser()))

    def folder_or_id(text: str | None) -> str | None:
        if text is None:
            return None
        local = text.startswith(("/", "./", "../", "~")) or (cwd / text).is_dir()
        return absolute(text) if local else text

    dataset: Any = recipe.dataset
    changes: dict[str, Any] = {"tokenizer": folder_or_id(dataset.tokenizer)}
    if isinstance(dataset, SavedDataset):
        changes["path"] = absolute(dataset.path)
    if isinstance(dataset, FilesDataset):
        changes["paths"] = tuple(absolute(path) for path in dataset.paths)
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"name": folder_or_id(recipe.model.name)}),
            "dataset": dataset.model_copy(update=changes),
            "checkpoint": recipe.checkpoint.model_copy(
                update={"folder": absolute(str(recipe.checkpoint_folder))}
            ),
            "output": recipe.output.model_copy(update={"folder": absolute(str(recipe.run_folder))}),
        }
    )


def _normal(path: Path) -> Path:
    """Without `.` and `..`, symbolic links kept: other nodes may resolve them otherwise."""
    parts: list[str] = []
    for part in path.absolute().parts:
        if part == "..":
            parts[1:] = parts[1:-1]
        elif part != ".":
            parts.append(part)
    return Path(*parts)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    text = text.replace("${", "$${")
    value = read_plain(text)
    plain = type(value) is str and text.isascii() and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    text = repr(number)
    if "." not in text:
        text = text.replace("e", ".0e")  # else PyYAML marks it with a tag
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Doubtful, _text)  # in quotes: it stood where it is a choice
_Dumper.add_representer(float, _float)


def dump(recipe: Recipe) -> str:
    """YAML that loads back to an equal recipe."""
    return _dumped(recipe.model_dump(mode="json"))


def dump_tree(root: Node) -> str:
    """YAML that reads back to the values of a tree: a recipe as written, without defaults, in one file."""
    return _dumped(root.plain())


def _dumped(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
