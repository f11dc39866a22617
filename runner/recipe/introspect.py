"""Reads the pydantic section classes into the table of runner/recipe/table.py."""

from __future__ import annotations

import types
from datetime import timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from runner.recipe.fields import Section
from runner.recipe.recipe import Recipe
from runner.recipe.table import Fields, Table, Type, checksum
from runner.recipe.units import parse_duration, parse_size


def build_table() -> Table:
    """Every section class reachable from `Recipe`.

    Raises:
        TypeError: a field's type is none that the quick check knows; extend it, or write the constraint as a rule
            in runner/recipe/checks/.
    """
    table: Table = {}
    _section(Recipe, table)
    return table


def _section(cls: type[Section], table: Table) -> str:
    if cls.__name__ in table:
        return cls.__name__
    if cls.__pydantic_decorators__.model_validators or cls.__pydantic_decorators__.field_validators:
        raise TypeError(f"{cls.__name__} has validators: write them as rules in runner/recipe/checks/")
    fields: Fields = {}
    table[cls.__name__] = fields
    for name, info in cls.model_fields.items():
        where = f"{cls.__name__}.{name}"
        metadata = [*info.metadata, *([info] if info.discriminator else [])]
        fields[name] = (_type(info.annotation, metadata, where, table), _default(info, where, table))
    return cls.__name__


def _default(info: FieldInfo, where: str, table: Table) -> tuple[str, Any] | None:
    if info.is_required():
        return None
    factory: Any = info.default_factory
    value = factory() if factory is not None else info.default
    if value is PydanticUndefined:
        raise TypeError(f"{where}: no default")
    if isinstance(value, Section):
        if value != type(value)():
            raise TypeError(f"{where}: a section's default must be that section's own defaults")
        return ("section", _section(type(value), table))
    if isinstance(value, timedelta):
        return ("seconds", value.total_seconds())
    return ("value", value)


def _type(annotation: Any, metadata: list[Any], where: str, table: Table) -> Type:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        flat: list[Any] = []
        for item in more:
            flat += [item, *item.metadata] if isinstance(item, FieldInfo) else [item]
        return _type(inner, [*flat, *metadata], where, table)
    origin, args = get_origin(annotation), get_args(annotation)
    limits = _limits(metadata, where)
    if origin in (Union, types.UnionType):
        return _union(args, metadata, where, table)
    if origin is Literal:
        return ("literal", args)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return ("list", _type(args[0], [], where, table), limits["min_length"], limits["max_length"])
        return ("tuple", tuple(_type(arg, [], where, table) for arg in args))
    if origin is dict:
        return (
            "dict",
            *(_type(arg, [], where, table) for arg in args),
            limits["min_length"],
            limits["max_length"],
        )
    if annotation is Any:
        return ("any",)
    bounds = (limits["ge"], limits["gt"], limits["le"], limits["lt"])
    readers = [item.func for item in metadata if isinstance(item, BeforeValidator)]
    if annotation is timedelta and readers == [parse_duration]:
        return ("duration", *(None if b is None else b.total_seconds() for b in bounds))
    if annotation is int and readers == [parse_size]:
        return ("size", *bounds)
    if readers:
        raise TypeError(f"{where}: a reader the quick check does not know: {readers}")
    if annotation is bool:
        return ("bool",)
    if annotation in (int, float):
        return (annotation.__name__, *bounds)
    if annotation is str:
        return ("str", limits["min_length"], limits["max_length"], limits["pattern"])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return ("section", _section(annotation, table))
    raise TypeError(f"{where}: a type the quick check does not know: {annotation}")


def _union(args: tuple[Any, ...], metadata: list[Any], where: str, table: Table) -> Type:
    rest = [arg for arg in args if arg is not type(None)]
    if len(rest) < len(args):
        return ("optional", _type(rest[0] if len(rest) == 1 else Union[tuple(rest)], metadata, where, table))  # noqa: UP007
    key = next(
        (item.discriminator for item in metadata if isinstance(item, FieldInfo) and item.discriminator), None
    )
    if key is None:
        return ("oneof", tuple(_type(arg, [], where, table) for arg in rest))
    if not isinstance(key, str):
        raise TypeError(f"{where}: a discriminator must be a field's name")
    tags = {tag: _section(arg, table) for arg in rest for tag in get_args(arg.model_fields[key].annotation)}
    return ("tagged", key, tags)


_LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def _limits(metadata: list[Any], where: str) -> dict[str, Any]:
    found = dict.fromkeys(_LIMITS)
    for item in metadata:
        for name in _LIMITS:
            value = getattr(item, name, None)
            if value is not None and not isinstance(item, FieldInfo):
                found[name] = value
        if getattr(item, "multiple_of", None) is not None:
            raise TypeError(f"{where}: multiple_of is a rule")
    return found


def table_source() -> str:
    """The text of runner/recipe/_table.py."""
    lines = [
        '"""The sections as a table (see table.py). Generated by tools/generated.py: do not edit."""',
        "",
        "from typing import Any",
        "",
        "# ruff: noqa",
        "# fmt: off",
        f"CHECKSUM = {checksum()}",
        "TABLE: dict[str, dict[str, Any]] = {",
    ]
    for name, fields in build_table().items():
        lines.append(f"    {name!r}: {{")
        lines += [f"        {field!r}: {declared!r}," for field, declared in fields.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])
