"""What is evaluated on: the held-out tasks of a spec, and evaluation-only sets by name.

Task files are read without what a run would ask of them: whether its training tasks can be scored is
nothing to an evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...agents.scoring.plugins import fault
from ...specs.errors import COMMAND_LINE, Problem, SpecError, did_you_mean
from ...specs.loader import LoadedSpec, load_task_file
from ...specs.ood import OodTask
from ...specs.sampling import stream
from ...specs.tasks import HeldOutTask, Task, TrainTask, ValidationTask
from ..data.derived import derive_quality
from ..data.load import Refusal, Tasks, good_rows, unscorable
from ..data.ood import beside as sets_beside
from ..data.readers import FORMATS

HELD_OUT = "held-out"
EVERY = "all"
SetTasks = list[tuple[str, Task]]


@dataclass
class SpecTasks:
    """What a spec's task files hold."""

    trained: list[tuple[str, Task]] = field(default_factory=list)
    """`training` or `validation`, and the task, whether it could be scored or not."""
    held_out: list[Task] = field(default_factory=list)
    """Each is scored by its full rubric, whatever training made of others'."""
    refused: list[Refusal] = field(default_factory=list)


@dataclass
class Sets:
    """Tasks by the name of their set, and rows that are none."""

    tasks: SetTasks = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_sets(loaded: LoadedSpec, own: SpecTasks, wanted: Sequence[str]) -> Sets:
    """The sets that a command line names: `held-out`, the spec's own held-out tasks; a file; the name of
    one in a folder `ood` beside a task file of the spec (of several with one name, the path); `all` of
    these. A row's set is its source, or the file's name.

    Raises `SpecError`.
    """
    beside = sets_beside(loaded.task_files)
    files: list[tuple[str, Path]] = []
    sets = Sets()
    for name in wanted:
        if Path(name).is_file():
            files.append(("", Path(name)))
            continue
        if name not in (HELD_OUT, EVERY, *beside):
            found = list(beside)
            known = ", ".join(found) or "no folder `ood` is beside the task files"
            message = f"{name} is no file and no set{did_you_mean(name, [HELD_OUT, *found])}; "
            message += f"sets: {HELD_OUT}, {EVERY}; {known}"
            raise SpecError([Problem(COMMAND_LINE, 0, 0, "--set", message)])
        if name in (HELD_OUT, EVERY) and not sets.tasks:
            sets.tasks = [(HELD_OUT, task) for task in own.held_out]
            sets.refused = Tasks(refused=own.refused).refusal_lines()
        files += [(n, path) for n, path in beside.items() if name in (EVERY, n)]
    for name, path in dict.fromkeys(files):
        _read(name, path, sets)
    times = Counter((name, task.id) for name, task in sets.tasks)
    if twice := next((one for (_, one), n in times.items() if n > 1), None):
        raise SpecError([Problem(COMMAND_LINE, 0, 0, "--set", f"two tasks have the id {twice}")])
    return sets


def read_tasks(loaded: LoadedSpec) -> SpecTasks:
    """The tasks of a spec's files. Raises `SpecError`."""
    own = SpecTasks()
    judged = loaded.spec.roles.judge is not None
    for path in loaded.task_files:
        for where, task in _rows(path):
            if isinstance(task, str):
                own.refused.append(Refusal(where, task))
            elif isinstance(task, TrainTask):
                own.trained.append(("training", task))
            elif isinstance(task, ValidationTask):
                own.trained.append(("validation", task))
            elif reason := unscorable(task.rubric, judged):
                own.refused.append(Refusal(where, reason))
            else:
                own.held_out.append(task)
    return own


def _rows(path: Path) -> Iterator[tuple[str, Task | str]]:
    """The tasks of a file, each with its place; a text says why a row is none.

    Raises `SpecError`, as a run would: what is wrong with rows of our own form is mended, not left out.
    """
    if path.suffix in FORMATS:
        for row in good_rows(path):
            task = row.task
            if isinstance(task, HeldOutTask) and task.origin and task.quality is None:
                # What an oracle can know of a row of a data set, as when a run reads it.
                task = task.model_copy(update={"quality": derive_quality(task.prompt)})
            yield row.where, task
        return
    file = load_task_file(path, fault)
    for one in (*file.train, *file.validation, *file.held_out):
        yield f"{path}: {one.id}", one


def _read(name: str, path: Path, sets: Sets) -> None:
    before = len(sets.tasks)
    for row in good_rows(path):
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
