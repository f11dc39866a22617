"""What follows from the sections is current, and fits the shipped recipes."""

from __future__ import annotations

import json
import re
from typing import Any

import generated
import jsonschema
import pytest
import yaml
from pydantic import field_validator
from recipelab import RECIPES, ROOT

from runner.recipe import introspect
from runner.recipe.docstrings import section_docs
from runner.recipe.fields import Section
from runner.recipe.introspect import build_table
from runner.recipe.table import checksum, table


def test_generated_files_are_current() -> None:
    assert sorted(generated.stale()) == [], "run `make generated`"


def test_table_is_used_and_is_that_of_the_classes() -> None:
    from runner.recipe import _table

    assert checksum() == _table.CHECKSUM
    assert table() == build_table()


def test_every_setting_is_documented() -> None:
    docs = section_docs()
    undocumented = [
        f"{name}.{field}"
        for name, fields in table().items()
        for field, (kind, _) in fields.items()
        if len(docs[name].fields.get(field, "")) < 10 and not (kind[0] == "literal" and len(kind[1]) == 1)
    ]
    assert undocumented == []
    assert all(docs[name].text for name in table())


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers and `!replace`, as editors read them."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_constructor("!replace", lambda loader, node: loader.construct_mapping(node, deep=True))


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found = json.loads((ROOT / "docs" / "recipe.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(found)
    return found


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_schema_accepts_shipped_recipe_which_names_it(path: Any, schema: dict[str, Any]) -> None:
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=../docs/recipe.schema.json\n")
    errors = list(jsonschema.Draft7Validator(schema).iter_errors(yaml.load(text, _Loader)))
    assert not errors, errors[0]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("training", "stepz", 3), ("training", "steps", "many"), ("training", "steps", 0), ("checkpoint", "mode",
     "fast"),
     ("recovery", "layer", "magic"), ("recovery", "ft_launcher", {}), ("dataset", "path", "x"), ("checkpoint",
     "write_timeout", "soon"),
     ("training", "optimizer", {"lr": "fast"}), ("faults", "types", ["flood"]), ("sharding",
     "wrap", {"modules": []})],
)  # fmt: skip
def test_schema_refuses(section: str, key: str, value: object, schema: dict[str, Any]) -> None:
    recipe = yaml.load((ROOT / "recipes" / "quickstart.yaml").read_text(), _Loader)
    recipe[section][key] = value
    assert not jsonschema.Draft7Validator(schema).is_valid(recipe)


def test_schema_shows_description_default_and_unit(schema: dict[str, Any]) -> None:
    soft = schema["$defs"]["InprocessSettings"]["properties"]["soft_timeout"]
    assert soft["description"].startswith("A rank without progress")
    assert (soft["default"], soft["x-unit"]) == ("1m", "seconds")


def test_hooks_and_workflow_run_the_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hooks[0]["entry"] == "nvrx-run --validate"
    workflow = (ROOT / "docs" / "github-actions.yaml").read_text()
    assert "nvrx-run --validate" in workflow
    assert yaml.safe_load(workflow)["jobs"]


class _Checked(Section):
    """A section that checks itself, where the quick check cannot see it."""

    size: int = 1

    @field_validator("size")
    @classmethod
    def _even(cls, value: int) -> int:
        return value


class _Complex(Section):
    """A section with a type that the quick check does not know."""

    number: complex = 1j


@pytest.mark.parametrize("cls", [_Checked, _Complex])
def test_section_that_the_quick_check_cannot_check_is_refused_by_name(cls: type[Section]) -> None:
    with pytest.raises(TypeError, match=cls.__name__):
        introspect._section(cls, {})


def test_stale_table_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.recipe import _table
    from runner.recipe import table as module

    monkeypatch.setattr(_table, "CHECKSUM", 0)
    monkeypatch.setattr(_table, "TABLE", {})
    monkeypatch.setattr(module, "_memo", {})
    assert module.table() == build_table()
