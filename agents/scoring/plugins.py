"""Checks of other people's packages, found by their entry points.

A package declares a check in its own pyproject.toml, and needs nothing of this project to write one:

    [project.entry-points."harnessrl.checks"]
    rhymes = "my_package:Rhymes"

The entry point is a `CheckFactory`. Entry points are looked up when the first plugin check is met, and a
package is imported when a check of it is; nothing here raises, whatever a package does.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...specs.checks import PluginCheck
from ...specs.errors import did_you_mean
from ...specs.printable import short_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "harnessrl.checks"


class PluggedCheck(Protocol):
    """A check with its arguments set. The same texts get the same answer, in any order and thread."""

    def __call__(self, prompt: str, response: str, /) -> bool | str:
        """Is it met? A string says why that cannot be told: the criterion is then unscored."""


class CheckFactory(Protocol):
    """What an entry point names: a class, or a function, that takes a check's arguments by name.

    Raises `ValueError` or `TypeError` for arguments that make no sense, and anything else where the
    check cannot work on this machine.
    """

    def __call__(self, **args: Any) -> PluggedCheck: ...


@dataclass(frozen=True)
class _Made:
    """A check that is ready, or why there is none."""

    check: PluggedCheck | None = None
    name_fault: str | None = None
    args_fault: str | None = None
    missing: str | None = None  # what this machine lacks

    @property
    def cause(self) -> str | None:
        return self.name_fault or self.args_fault or self.missing


def fault(name: str, args: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with the name of a check, or with its arguments where they are given."""
    if args is None:
        return _factory(name)[1]
    wrong = _made(name, _as_json(args)).args_fault
    return f"{name}: {wrong}" if wrong else None


def missing(check: PluginCheck) -> str | None:
    """Why a check decides nothing on this machine, or None."""
    cause = _made(check.name, _as_json(check.args)).cause
    return short_line(f"{check.name}: {cause}") if cause else None


def decide(check: PluginCheck, prompt: str, response: str) -> bool | str:
    """Is the check met, or why can that not be told?"""
    import numpy as np  # here: what only reads specs does without

    made = _made(check.name, _as_json(check.args))
    if made.check is None:
        return missing(check) or ""
    try:
        said = made.check(prompt, response)
        if isinstance(said, bool | np.bool_):
            return bool(said)
        cause = said.strip() if isinstance(said, str) else f"no verdict: {type(said).__name__}"
    except (Exception, SystemExit) as error:
        cause = _told(error)
    return short_line(f"{check.name}: {cause or 'cannot tell, and does not say why'}")


@functools.lru_cache(maxsize=256)
def version(name: str) -> str:
    """The distribution that declares a check, with its version; empty if there is none."""
    points = _declared().get(name, ())
    return ", ".join(sorted(f"{p.dist.name} {p.dist.version}" for p in points if p.dist))


@functools.lru_cache(maxsize=1)
def _declared() -> dict[str, list[EntryPoint]]:
    """The installed entry points by name."""
    from importlib.metadata import entry_points  # reads the metadata of every distribution

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


@functools.lru_cache(maxsize=256)
def _factory(name: str) -> tuple[CheckFactory | None, str | None]:
    """What an entry point names, or what is wrong with it."""
    points = _declared().get(name, [])
    if not points:
        allowed = ", ".join(sorted(_declared()))
        if not allowed:
            return None, f"no installed package declares a check (entry points `{GROUP}`)"
        return None, f"no installed package declares this check; allowed: {allowed}"
    if len({point.value for point in points}) > 1:
        return None, f"several installed packages declare this check: {version(name)}"
    try:
        factory = points[0].load()
    except (Exception, SystemExit) as error:
        return None, f"{version(name)} cannot be loaded: {_told(error)}"
    if not callable(factory):
        return None, f"{points[0].value} is no check: {type(factory).__name__} is not callable"
    return factory, None


@functools.lru_cache(maxsize=4096)
def _made(name: str, args_json: str) -> _Made:
    """A check with its arguments set; arguments go by JSON, so that no package can change a spec's."""
    factory, wrong = _factory(name)
    if factory is None:
        return _Made(name_fault=wrong)
    args: dict[str, Any] = json.loads(args_json)
    try:
        if unfit := _unfit(factory, args):
            return _Made(args_fault=unfit)
        check = factory(**args)
    except (ValueError, TypeError) as error:
        return _Made(args_fault=short_line(f"refuses its arguments: {error}"))
    except (Exception, SystemExit) as error:
        return _Made(missing=_told(error))
    if not callable(check):
        return _Made(args_fault=f"makes no check: {type(check).__name__} is not callable")
    return _Made(check)


def _unfit(factory: CheckFactory, args: Mapping[str, Any]) -> str | None:
    """Arguments that a factory does not have, or lacks, by its signature (None also without one)."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-in types have none; the call will tell
        return None
    named = {
        key: p for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        unknown = []
    else:
        unknown = [f"{key}{did_you_mean(key, named)}" for key in args if key not in named]
    needed = [key for key, p in named.items() if p.default is p.empty and key not in args]
    if not unknown and not needed:
        return None
    told = [f"no argument {', '.join(unknown)}"] if unknown else []
    told += [f"needs {', '.join(needed)}"] if needed else []
    return short_line(f"{'; '.join(told)} (arguments: {', '.join(named) or 'none'})")


def _as_json(args: Mapping[str, Any]) -> str:
    return json.dumps(args, sort_keys=True, default=repr)


def _told(error: BaseException) -> str:
    return short_line(f"{type(error).__name__}: {error}")
