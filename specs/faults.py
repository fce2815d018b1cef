"""What is wrong with values that are right one by one: each fault with the keys it may be mended at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, model_validator

if TYPE_CHECKING:
    from .errors import Steps

#: Off where a whole model is wanted although its values contradict each other.
_CHECKING: ContextVar[bool] = ContextVar("checking", default=True)


class Fault(NamedTuple):
    """A contradiction, told at the first of `paths` (below the model that finds it) that is written."""

    message: str
    paths: tuple[Steps, ...]
    shown: bool = True
    """May the value be repeated?"""


def fault(message: str, *paths: Steps) -> Fault:
    """A fault of the values at `paths`, the one to mend first."""
    return Fault(message, paths)


class FaultsError(ValueError):
    """All that a validator of a whole model finds wrong."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults))


class Checked(BaseModel):
    """A model whose values have to fit each other."""

    def faults(self) -> Iterator[Fault]:
        """Everything that does not."""
        yield from ()

    @model_validator(mode="after")
    def _is_faultless(self) -> Any:
        if _CHECKING.get() and (found := tuple(self.faults())):
            raise FaultsError(found)
        return self


def faults_of(model: type[BaseModel], data: Any, context: Any) -> tuple[Fault, ...]:
    """The faults of `data` on every level, where each value alone is right.

    Pydantic stops at the innermost models with a fault. Raises `ValidationError`.
    """
    checking = _CHECKING.set(False)
    try:
        whole = model.model_validate(data, context=context)
    finally:
        _CHECKING.reset(checking)
    return tuple(_below(whole, ()))


def _below(model: BaseModel, path: Steps) -> Iterator[Fault]:
    if isinstance(model, Checked):
        for one in model.faults():
            yield one._replace(paths=tuple((*path, *p) for p in one.paths))
    for name in type(model).model_fields:
        if isinstance(value := getattr(model, name), BaseModel):
            yield from _below(value, (*path, name))
