"""What is evaluated on: the held-out tasks of a spec, and evaluation-only sets by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...specs.errors import COMMAND_LINE, Problem, SpecError, did_you_mean
from ...specs.loader import LoadedSpec
from ...specs.ood import OodTask
from ...specs.sampling import stream
from ...specs.tasks import Task
from ..data.load import Tasks
from ..data.readers import FORMATS
from ..data.rows import read_rows

HELD_OUT = "held-out"
EVERY = "all"
SetTasks = list[tuple[str, Task]]


@dataclass
class Sets:
    """Tasks by the name of their set, and rows that are none."""

    tasks: SetTasks = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def held_out(tasks: Tasks) -> SetTasks:
    """The in-domain set. A task is scored by its full rubric, whatever training made of others'."""
    return [(HELD_OUT, task) for task in tasks.held_out.values()]


def read_sets(loaded: LoadedSpec, wanted: Sequence[str]) -> Sets:
    """The sets that a command line names: a file, or the name of one in a folder `ood` beside a task file
    of the spec (`all`: every one of them). A row's set is its source, or the file's name.

    Raises `SpecError`.
    """
    beside = _beside(loaded)
    files: list[tuple[str, Path]] = []
    for name in wanted:
        if Path(name).is_file():
            files.append(("", Path(name)))
        elif name in beside or (name == EVERY and beside):
            files += [(n, path) for n, path in beside.items() if name in (EVERY, n)]
        else:
            known = ", ".join(beside) or "none: no folder `ood` is beside the task files"
            message = f"{name} is no file and no set{did_you_mean(name, list(beside))}; sets: {known}"
            raise SpecError([Problem(COMMAND_LINE, 0, 0, "--set", message)])
    sets = Sets()
    for name, path in files:
        _read(name, path, sets)
    ids = [task.id for _, task in sets.tasks]
    if (
        twice := next((one for one in ids if ids.count(one) > 1), None)
        if len({*ids}) < len(ids)
        else None
    ):
        raise SpecError([Problem(COMMAND_LINE, 0, 0, "--set", f"two tasks have the id {twice}")])
    return sets


def _beside(loaded: LoadedSpec) -> dict[str, Path]:
    folders = dict.fromkeys(file.parent / "ood" for file in loaded.task_files)
    files = [path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in FORMATS]
    return {path.stem: path for path in files}


def _read(name: str, path: Path, sets: Sets) -> None:
    before = len(sets.tasks)
    for row in read_rows(path):
        if isinstance(row.task, str):
            sets.refused.append(f"{row.where}: {row.task}")
            continue
        task = row.task if isinstance(row.task, OodTask) else as_ood(row.task)
        sets.tasks.append((name or _name(task, path), task))
    if len(sets.tasks) == before and not sets.refused:
        raise SpecError([Problem(str(path), 1, 1, "", "the file holds no row")])


def _name(task: OodTask, path: Path) -> str:
    """The source that a task names; a row that may be trained on is named after its file alone."""
    if task.source != path.name:
        return task.source
    return "ifeval" if task.instructions else path.stem


def as_ood(task: Task) -> OodTask:
    """A task of a set that may be trained on elsewhere (IFEval's), as one that is only evaluated on."""
    fields = {name: getattr(task, name) for name in Task.model_fields}
    more = task.origin.more if task.origin else {}
    return OodTask.model_validate(fields | {"instructions": more.get("instructions", ())})


def limited(tasks: SetTasks, limit: int | None, seed: int) -> SetTasks:
    """At most `limit` tasks of each set, evenly over its domains, the same ones for the same seed."""
    if limit is None:
        return tasks
    places: dict[tuple[str, str], list[int]] = {}
    for n, (name, task) in enumerate(tasks):
        places.setdefault((name, task.domain), []).append(n)
    ranked: dict[str, list[tuple[int, float, int]]] = {}
    for (name, domain), numbers in places.items():
        order = stream(seed, "evaluate", "limit", name, domain).permutation(len(numbers))
        draws = stream(seed, "evaluate", "turn", name, domain).random(len(numbers))
        ranked.setdefault(name, []).extend(
            (turn, float(draws[turn]), numbers[k]) for turn, k in enumerate(order.tolist())
        )
    kept = {n for some in ranked.values() for _, _, n in sorted(some)[:limit]}
    return [one for n, one in enumerate(tasks) if n in kept]
