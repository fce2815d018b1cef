"""Reads run specs and task files: YAML in, typed models out, or every problem with its position.

A run spec is assembled from layers before it is checked: the files of its `extends` chain, a
recipe, and options of the command line. Every value keeps the place where it was written.
"""

from __future__ import annotations

import difflib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from .errors import (
    COMMAND_LINE,
    Entry,
    Node,
    Problem,
    SpecError,
    Steps,
    describe,
    did_you_mean,
    dotted,
    placed,
    validate,
)
from .faults import Fault
from .harnessfile import HarnessFile
from .mix import MixSpec
from .schema import Judge, RunSpec
from .tasks import PluginFault, TaskFile
from .updates import Update, UpdateFile
from .yamlnodes import dump_yaml, from_data, read, read_plain

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
DEFAULT_RECIPE = "harnessrl"
YAML = (".yaml", ".yml")
#: Suffixes of files of rows, which people take for specs.
ROWS = (".jsonl", ".parquet", ".csv")
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
    """The recipe merged over the spec; `harnessrl` if none was."""
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
    source, whole = _read_chain(path, problems)
    if recipe is not None:
        names = sorted(file.stem for file in RECIPES.glob("*.yaml"))
        if recipe in names:
            layer, _ = _read_chain(RECIPES / f"{recipe}.yaml", problems)
            source = _merge(source, layer, place=source)
        else:
            message = f"there is no recipe {recipe}{did_you_mean(recipe, names)}"
            message += f"; available: {', '.join(names)}"
            problems.append(Problem(COMMAND_LINE, 0, 0, "recipe", message))
    if overrides:
        source = _merge(source, from_data(overrides, problems), place=source)
    for steps in TEMPLATES:
        _make_absolute(source, steps, problems)
    _make_policy_absolute(source)
    spec = validate(RunSpec, source, problems, more_keys=("extends",), whole=whole)
    task_files = _task_files(source, problems)
    start_file = _existing(source.get("start"), ("start",), problems)
    if spec is None or problems:
        raise SpecError(_in_order(problems, path))
    return LoadedSpec(spec, task_files, start_file, recipe or DEFAULT_RECIPE, source)


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
    source = _read_file(path, []) or Node(str(path), 1, 1, None)
    return _in_order([placed(source, above, fault) for fault in faults], path)


def task_places(path: Path, faults: Mapping[str, Fault]) -> list[Problem]:
    """Faults of tasks in a YAML task file by the ids of these."""
    source = _read_file(path, []) or Node(str(path), 1, 1, None)
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
        source = _read_file(path, problems)
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


# --- files --------------------------------------------------------------------------------------


def _read_file(path: Path, problems: list[Problem]) -> Node | None:
    """The mapping in a YAML file, or None. What is wrong with the file goes to `problems`."""
    file = str(path)
    if path.suffix in ROWS and path.is_file():
        message = (
            f"a {path.suffix} file holds rows of data (`harnessrl data` looks at it); this takes YAML"
        )
        problems.append(Problem(file, 1, 1, "", message))
        return None
    try:
        text = path.read_bytes().decode("utf-8")
        root, found = read(text.removeprefix("\ufeff"), file)
    except FileNotFoundError:
        message = f"the file does not exist{_similar_file(path)}"
    except IsADirectoryError:
        message = "this is a folder, not a file"
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {error.start + 1}"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        message = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
    except SpecError as error:
        problems += error.problems
        return None
    else:
        problems += found
        if isinstance(root.value, dict):
            return root
        if root.value is None:
            message = "the file is empty"
        else:
            message = f"the file must hold a mapping (key: value), not {describe(root)}"
    problems.append(Problem(file, 1, 1, "", message))
    return None


def _no_file(name: Node, path: Path) -> str:
    """What is wrong with a `name` that leads to `path`, where there is no file."""
    if name.value == "":
        return "must be the path of a file, not empty"
    if os.path.isdir(path):
        inside = [file for file in ("train.jsonl", "held_out.jsonl") if os.path.isfile(path / file)]
        names = ", ".join(f"{path.name}/{file}" for file in inside)
        hint = f"; name its files: {names}" if names else ""
        return f"{describe(name)} is a folder, not a file{hint}"
    return f"{describe(name)} does not exist{_similar_file(path, name.file)}"


def _similar_file(path: Path, named_in: str = "") -> str:
    """Another file of its kind that `path` was probably meant to be; never the one that names it."""
    kinds = YAML if path.suffix in YAML else (path.suffix,)
    try:
        there = [
            file for file in sorted(path.parent.iterdir()) if file.suffix in kinds and file.is_file()
        ]
    except (OSError, ValueError):
        return ""
    own = Path(named_in).name if named_in and Path(named_in).parent == path.parent else ""
    # By their stems: the same suffix would make any two names alike.
    by_stem = {file.stem: file.name for file in there if file.name != own}
    stem = next(iter(difflib.get_close_matches(path.stem, by_stem, n=1, cutoff=0.75)), None)
    return f" (did you mean {by_stem[stem]}?)" if stem else ""


def _read_chain(path: Path, problems: list[Problem]) -> tuple[Node, bool]:
    """The file at `path` over those it `extends`; False if the chain breaks off with a problem.

    Raises `SpecError` if the first file cannot be read.
    """
    merged = _read_file(path, problems)
    if merged is None:
        raise SpecError(problems)
    chain = [path]
    target = _take_extends(merged)
    while target is not None:
        if not isinstance(target.value, str):
            message = f"must be the path of another spec, not {describe(target)}"
            problems.append(target.problem(("extends",), message))
            return merged, False
        file = chain[-1].parent / target.value
        if not os.path.isfile(file):
            problems.append(target.problem(("extends",), _no_file(target, file)))
            return merged, False
        chain.append(file)
        if any(os.path.samefile(file, earlier) for earlier in chain[:-1]):
            message = f"the chain is a circle: {' -> '.join(str(file) for file in chain)}"
            problems.append(target.problem(("extends",), message))
            return merged, False
        parent = _read_file(file, problems)
        if parent is None:
            return merged, False
        target = _take_extends(parent)
        merged = _merge(parent, merged, place=merged)
    return merged, True


def _take_extends(root: Node) -> Node | None:
    """The value of the key `extends`, which says how to read a file and is no part of the spec."""
    entry = root.value.pop("extends", None) if isinstance(root.value, dict) else None
    return entry.value if entry else None


def _merge(low: Node, high: Node, place: Node) -> Node:
    """`high` over `low`: mappings of one `kind` key by key, everything else replaced whole.

    A merged mapping stands where `place` (one of the two) does: there its missing keys are missed.
    """
    if not (isinstance(low.value, dict) and isinstance(high.value, dict)):
        return high
    kinds = [node.get("kind") for node in (low, high)]
    if all(kinds) and len({kind.value for kind in kinds if kind and isinstance(kind.value, str)}) == 2:
        return high  # another kind of thing: the keys of the one mean nothing to the other
    entries = dict(low.value)
    for name, entry in high.value.items():
        below = entries.get(name)
        if below is None:
            entries[name] = entry
        else:
            at = below if place is low else entry
            entries[name] = Entry(at.key, _merge(below.value, entry.value, place=at.value))
    return Node(place.file, place.line, place.column, entries, bad=low.bad or high.bad)


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
    problems.append(item.problem(path, _no_file(item, file)))
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
