"""Checks arguments against the installed OpenRLHF's own parser and assertions, without torch or a GPU.

The parser of `openrlhf.cli.train_ppo_ray` stands in its `__main__` block, under imports of Ray and vLLM.
That block alone is run here, with an `argparse` that refuses abbreviations and raises instead of
exiting, and with a `train` of which only the assertions are left.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NoReturn

from ...specs.errors import Node, Problem, did_you_mean
from ...specs.loader import LoadedSpec
from ...specs.schema import RunSpec
from ..runfolder import RunFolder
from .argv import argv, as_argv, conflict
from .versions import OPENRLHF

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class FlagError(Exception):
    """OpenRLHF would refuse these arguments; the message is its own."""


@dataclass(frozen=True)
class Parsed:
    """What OpenRLHF makes of its arguments."""

    args: Any
    """Nested, e.g. `args.ds.zero_stage`, with all implied settings."""
    remarks: tuple[str, ...]
    """What it would print about them."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, given: Sequence[str] | None) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self.given = given

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.given is None:
            raise _ParserReady(self)
        return super().parse_args(self.given, namespace)

    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


class _ParserReady(Exception):  # noqa: N818  (no error: it carries the parser out of OpenRLHF's code)
    def __init__(self, parser: _Parser) -> None:
        self.parser = parser


def installed_version() -> str | None:
    """The version of OpenRLHF in this environment; None if it is not installed."""
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return None


def parse(arguments: Sequence[str]) -> Parsed:
    """What the installed OpenRLHF makes of `arguments`. Raises `FlagError`."""
    remarks: list[str] = []
    found: list[Any] = []
    try:
        _run_main(arguments, found.append, lambda *words: remarks.append(" ".join(map(str, words))))
    except (AssertionError, ZeroDivisionError) as error:
        raise FlagError(str(error)) from None
    return Parsed(found[0], tuple(remarks))


def names() -> list[str]:
    """Every flag of the installed OpenRLHF, without its dashes."""
    options = [option for action in _parser()._actions for option in action.option_strings]
    return [option.removeprefix("--") for option in options]


def problems(loaded: LoadedSpec) -> list[Problem]:
    """What is wrong with a spec's `engine.args`, or with the arguments as a whole, at its place.

    Without OpenRLHF in this environment names are checked in their form only, and values not at all.
    """
    spec = loaded.spec
    here = installed_version() is not None
    found = []
    node = loaded.source.at(("engine", "args"))
    for flag, value in spec.engine.args.items() if spec.engine.kind == "openrlhf" else ():
        if message := _wrong(flag, value, spec, here):
            found.append(_key(node, flag).problem(("engine", "args", flag), message))
    if here and not found:
        try:
            parse(argv(spec, RunFolder(Path("run"))))
        except FlagError as error:
            found.append(loaded.problem(("engine",), f"OpenRLHF refuses this: {error}"))
    return found


def _key(node: Node, flag: str) -> Node:
    return node.value[flag].key if isinstance(node.value, dict) and flag in node.value else node


def _wrong(flag: str, value: Any, spec: RunSpec, here: bool) -> str | None:
    return _wrong_name(flag, here) or conflict(flag, value, spec) or _wrong_value(flag, value, here)


def _wrong_name(flag: str, here: bool) -> str | None:
    if flag.startswith("-"):
        return f"flags are written without dashes: {flag.lstrip('-')}"
    if here and flag not in names():
        return f"OpenRLHF {installed_version()} has no flag --{flag}{did_you_mean(flag, names())}"
    return None if _NAME.fullmatch(flag) else "a flag has lowercase letters, digits, underscores and dots"


def _wrong_value(flag: str, value: Any, here: bool) -> str | None:
    parts = value if isinstance(value, list) else [value]
    if not parts or any(part is None or isinstance(part, dict | list) for part in parts):
        return "must be a scalar or a list of scalars"
    if isinstance(value, list) and any(isinstance(part, bool) for part in value):
        return "true and false are for switches"
    if here:
        action = next(a for a in _parser()._actions if f"--{flag}" in a.option_strings)
        if value is False and action.default is None:
            return None  # it is left out, and that is off
        if (action.nargs == 0) != isinstance(value, bool):
            return (
                "is a switch: true or false" if action.nargs == 0 else "needs a value, not true or false"
            )
        try:
            _parser().parse_known_args(as_argv({flag: value}))
        except FlagError as error:
            return str(error).partition(": ")[2] or str(error)
    return None


# --- OpenRLHF's own code --------------------------------------------------------------------------


@functools.cache
def _parser() -> _Parser:
    """OpenRLHF's parser, with every flag added."""
    try:
        _run_main(None, lambda _: None, lambda *_: None)
    except _ParserReady as ready:
        return ready.parser
    raise RuntimeError("openrlhf.cli.train_ppo_ray parses no arguments")


def _run_main(given: Sequence[str] | None, done: Any, say: Any) -> None:
    names: dict[str, Any] = {
        "__name__": "__main__",
        "argparse": SimpleNamespace(ArgumentParser=lambda: _Parser(given)),
        "os": os,
        "datetime": datetime,
        "hierarchize": _hierarchize,
        "print": say,
        "done": done,
    }
    exec(_code(), names)


@functools.cache
def _code() -> CodeType:
    """`train` and the `__main__` block of the installed OpenRLHF, as said above."""
    path = _package() / "cli" / "train_ppo_ray.py"
    kept: list[ast.stmt] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "train":
            node.body = [*_assertions(node.body), *ast.parse("done(args)").body]
            kept.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            kept += [part for part in node.body if not isinstance(part, ast.Import | ast.ImportFrom)]
    if len(kept) < 3:
        raise RuntimeError(f"{path} is not what it was in OpenRLHF {OPENRLHF}")
    return compile(ast.fix_missing_locations(ast.Module(kept, type_ignores=[])), str(path), "exec")


def _assertions(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The assertions among some statements, with the conditions they stand under."""
    for node in body:
        if isinstance(node, ast.Assert):
            yield node
        elif isinstance(node, ast.If) and (inner := list(_assertions(node.body))):
            yield ast.If(node.test, inner, list(_assertions(node.orelse)))


def _hierarchize(args: Any) -> Any:
    """OpenRLHF's own, from its file: importing it as a module would import torch."""
    names: dict[str, Any] = {}
    path = _package() / "utils" / "config.py"
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names["hierarchize"](args)


def _package() -> Path:
    spec = importlib.util.find_spec("openrlhf")  # its __init__ is empty
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("openrlhf is not installed")
    return Path(spec.submodule_search_locations[0])
