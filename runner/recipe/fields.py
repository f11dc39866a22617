"""Field types that sections share, and the base class of every section."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from runner.recipe.units import format_duration, parse_duration, parse_size

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": ["string", "number"], "examples": ["90s", "20m", 1.5], "unit": "seconds"}),
]
Patience = Annotated[Duration, Field(ge=timedelta(seconds=1))]
"""A timeout of something that takes its time: less than a second is a slip of the unit."""
PositiveDuration = Annotated[Duration, Field(gt=timedelta(0))]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["64GiB", 1024], "unit": "bytes"}),
]
Words = Annotated[tuple[str, ...], Field(strict=False)]  # a YAML list of strings
PositiveInt = Annotated[int, Field(ge=1, le=2**63 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """Base of every section: frozen, strict about types, unknown keys refused.

    The string under each field is its documentation: unit, default, why that default. `--emit-schema` and the
    reference page collect those strings from the source, so they are written for the person who edits a recipe.

    Relations between fields are not validators here but numbered rules in `runner/recipe/checks/`, where they get
    a position, a page in docs/rules.md and a test.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
