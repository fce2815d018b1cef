"""What every model of the spec language has in common."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Base of every YAML-facing model: immutable, unknown keys rejected, no silent coercion."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


T = TypeVar("T")
#: A YAML list, kept as a tuple. (Strict mode would take tuples only; the items stay strict.)
Many = Annotated[tuple[T, ...], Field(strict=False)]
AtLeastOne = Annotated[tuple[T, ...], Field(strict=False, min_length=1)]
