"""Reads run specs and task files: YAML in, typed models out, or every problem with its position.

A run spec is assembled from layers before it is checked: the files of its `extends` chain, a
recipe, and options of the command line. Every value keeps the place where it was written.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from .checks import PluginFault
from .errors import (
    COMMAND_LINE,
    Node,
    Problem,
    SpecError,
    Steps,
    did_you_mean,
    dotted,
    placed,
    validate,
)
from .faults import Fault
from .harnessfile import HarnessFile
from .layers import merge, no_file, read_chain, read_file
from .mix import MixSpec
from .plainyaml import read_plain
from .schema import Judge, RunSpec
from .tasks import TaskFile
from .updates import Update, UpdateFile
from .yamlnodes import dump_yaml, from_data

__all__ = [
    "LoadedSpec",
    "Problem",
    "SpecError",
    "collector_paused",
    "dump_yaml",
    "load_harness_file",
    "load_judge",
    "load_mix",
    "load_run_spec",
    "load_task_file",
    "load_update",
    "places",
    "task_places",
]

M = TypeVar("M", bound=BaseModel)
RECIPES = Path(__file__).parent / "recipes"
#: Where a spec may name a template of its own.
TEMPLATES: tuple[Steps, ...] = (
    ("evolver", "attribute", "prompt"),
    ("evolver", "propose", "prompt"),
    ("roles", "judge", "prompt"),
    ("oracle", "prompt"),
)


@dataclass(frozen=True)
class LoadedSpec:
    """A checked run spec and where it came from."""

    spec: RunSpec
    task_files: tuple[Path, ...]
    """`tasks.files` as absolute paths of existing files."""
    start_file: Path | None
    """`start` as the absolute path of an existing file."""
    recipe: str
    """The recipe merged over the spec; "" if none was."""
    source: Node = field(repr=False, compare=False)

    def problem(self, path: Steps, message: str) -> Problem:
        """A problem at a place such as ``("tasks", "files", 0)``, or at the nearest one above."""
        return self.source.at(path).problem(path, message)


def load_run_spec(
    path: Path, recipe: str | None = None, overrides: dict[str, Any] | None = None
) -> LoadedSpec:
    """Read the run spec at `path`, with `recipe` merged over it and `overrides` over both.

    Task files are relative to the file that names them, those in `overrides` to the current
    directory. Raises `SpecError` with everything wrong with the spec, its `extends` chain, the
    recipe and the overrides; task files must exist but are not read.
    """
    problems: list[Problem] = []
    source, whole = read_chain(path, problems)
    if recipe is not None:
        names = sorted(file.stem for file in RECIPES.glob("*.yaml"))
        if recipe in names:
            layer, _ = read_chain(RECIPES / f"{recipe}.yaml", problems)
            source = merge(source, layer, place=source)
        else:
            message = f"there is no recipe {recipe}{did_you_mean(recipe, names)}"
            message += f"; available: {', '.join(names)}"
            problems.append(Problem(COMMAND_LINE, 0, 0, "recipe", message))
    if overrides:
        source = merge(source, from_data(overrides, problems), place=source)
    for steps in TEMPLATES:
        _make_absolute(source, steps, problems)
    _make_policy_absolute(source)
    spec = validate(RunSpec, source, problems, more_keys=("extends",), whole=whole)
    task_files = _task_files(source, problems)
    start_file = _existing(source.get("start"), ("start",), problems)
    if spec is None or problems:
        raise SpecError(_in_order(problems, path))
    return LoadedSpec(spec, task_files, start_file, recipe or "", source)


def load_task_file(path: Path, fault: PluginFault | None = None) -> TaskFile:
    """Read a YAML task file. Raises `SpecError`; a task id used twice is a problem too.

    Plugin checks are held against `fault`; without one, any name and arguments will do.
    """
    return _all_well(path, fault) or _load(path, TaskFile, after=_check_ids, context=fault)


def load_harness_file(path: Path, fault: PluginFault | None = None) -> HarnessFile:
    """Read an exported harness. Raises `SpecError`."""
    return _load(path, HarnessFile, context=fault)


def load_judge(path: Path) -> Judge:
    """Read a judge's endpoint: the keys of `roles.judge`. Raises `SpecError`."""
    return _load(path, Judge, before=lambda node, found: _make_absolute(node, ("prompt",), found))


def load_update(path: Path, fault: PluginFault | None = None) -> Update:
    """Read one update that a person wrote. Raises `SpecError`."""
    return _load(path, UpdateFile, context=fault).update


def load_mix(path: Path, converters: Mapping[str, Any]) -> MixSpec:
    """Read a mix, and hold it against the properties of the `converters`. Raises `SpecError`."""
    return _load(path, MixSpec, context=converters)


def places(path: Path, faults: Iterable[Fault], above: Steps = ()) -> list[Problem]:
    """Faults of a YAML file that could be read, `above` which their paths begin, as problems.

    The file is read once more: places are not kept, since most files have no faults.
    """
    source = read_file(path, []) or Node(str(path), 1, 1, None)
    return _in_order([placed(source, above, fault) for fault in faults], path)


def task_places(path: Path, faults: Mapping[str, Fault]) -> list[Problem]:
    """Faults of tasks in a YAML task file by the ids of these."""
    source = read_file(path, []) or Node(str(path), 1, 1, None)
    found = {
        str(name.value): placed(source, (section, i), faults[str(name.value)])
        for section in ("train", "held_out", "validation")
        for i, task in _items(source.get(section))
        if (name := task.get("id")) is not None and name.value in faults
    }
    return list(found.values())


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: with 10,000 tasks its passes over what is read double the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@collector_paused()
def _all_well(path: Path, fault: PluginFault | None) -> TaskFile | None:
    """A task file with nothing wrong in it, or None: most are, and keeping no places halves the time."""
    with suppress(OSError, ValueError, RecursionError):
        data = read_plain(path.read_bytes().decode("utf-8").removeprefix("\ufeff"))
        file = TaskFile.model_validate(data, context=fault)
        ids = [task.id for tasks in (file.train, file.held_out, file.validation) for task in tasks]
        return file if len(set(ids)) == len(ids) else None
    return None


def _load(
    path: Path,
    model: type[M],
    before: Callable[[Node, list[Problem]], None] = lambda *_: None,
    after: Callable[[Node, list[Problem]], None] = lambda *_: None,
    context: Any = None,
) -> M:
    """A file as a `model`; `before` and `after` its validation more may be done with the nodes."""
    problems: list[Problem] = []
    with collector_paused():
        source = read_file(path, problems)
        if source is None:
            raise SpecError(problems)
        before(source, problems)
        loaded = validate(model, source, problems, context=context)
        after(source, problems)
        del source  # before the collector looks at a million nodes
    if loaded is None or problems:
        raise SpecError(_in_order(problems, path))
    return loaded


def _in_order(problems: list[Problem], first: Path) -> list[Problem]:
    """Each problem once, the file `first` before others, top to bottom; the command line last."""
    distinct: dict[tuple[Any, ...], Problem] = {}
    for p in problems:
        # An aliased value is wrong wherever its aliases stand, but written (and reported) once.
        place = (p.line, p.column) if p.line else p.path
        distinct.setdefault((p.file, place, p.message), p)
    files = list(dict.fromkeys([str(first), *(p.file for p in problems)]))
    files.sort(key=lambda file: file == COMMAND_LINE)
    return sorted(distinct.values(), key=lambda p: (files.index(p.file), p.line, p.column))


def _items(node: Node | None) -> Iterator[tuple[int, Node]]:
    if node is not None and isinstance(node.value, list):
        yield from enumerate(node.value)


def _task_files(source: Node, problems: list[Problem]) -> tuple[Path, ...]:
    """The files named in `tasks.files`; what does not exist goes to `problems`."""
    tasks = source.get("tasks")
    found = [
        _existing(item, ("tasks", "files", i), problems)
        for i, item in _items(tasks and tasks.get("files"))
    ]
    return tuple(file for file in found if file is not None)


def _existing(item: Node | None, path: Steps, problems: list[Problem]) -> Path | None:
    """The file that a value names, relative to the file it is written in."""
    if item is None or not isinstance(item.value, str):
        return None  # a wrong type is reported by the types
    folder = Path() if item.file == COMMAND_LINE else Path(item.file).parent
    file = folder / item.value
    if os.path.isfile(file):
        return file.resolve()
    problems.append(item.problem(path, no_file(item, file)))
    return None


def _make_absolute(source: Node, path: Steps, problems: list[Problem]) -> None:
    """Replace the name of a file by its absolute path, if there is one at `path`."""
    node = _value(source, path)
    if node is not None and (file := _existing(node, path, problems)):
        node.value = str(file)


def _make_policy_absolute(source: Node) -> None:
    """A policy that is a folder beside the file that names it (or here), by its absolute path."""
    node = _value(source, ("roles", "policy", "model"))
    if node is None or not isinstance(node.value, str) or not node.value:
        return
    for folder in (Path(node.file).parent, Path()):
        if os.path.isdir(folder / node.value):
            node.value = str((folder / node.value).resolve())
            return


def _value(source: Node, path: Steps) -> Node | None:
    """The value at `path`, if there is one."""
    node: Node | None = source
    for step in path:
        node = node and node.get(step)
    return node


def _check_ids(source: Node, problems: list[Problem]) -> None:
    """Task ids are unique over both lists: a held-out task must not train under its own name."""
    seen: dict[str, tuple[Steps, Node]] = {}
    for section in ("train", "held_out", "validation"):
        for i, task in _items(source.get(section)):
            name = task.get("id")
            if name is None or not isinstance(name.value, str):
                continue
            path = (section, i, "id")
            if name.value in seen:
                other, first = seen[name.value]
                message = (
                    f"{name.written} is the id of {dotted(other[:-1])} already "
                    f"(line {first.line}, column {first.column})"
                )
                problems.append(name.problem(path, message))
            else:
                seen[name.value] = (path, name)
