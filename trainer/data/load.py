"""Task files to tasks. A row that cannot be trained on is refused with a reason, never dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from ...agents.scoring.checks import missing_resource
from ...agents.scoring.plugins import fault
from ...specs.errors import Problem
from ...specs.faults import Fault
from ...specs.harness import check_shares
from ...specs.harnessfile import HarnessFile, misfits
from ...specs.loader import (
    LoadedSpec,
    SpecError,
    collector_paused,
    load_harness_file,
    load_task_file,
    task_places,
)
from ...specs.loader import places as file_places
from ...specs.ood import OodTask
from ...specs.rules import leak
from ...specs.tasks import Criterion, HeldOutTask, Pool, Task, TaskFile, TrainTask, ValidationTask
from ...specs.texts import normalised
from .converters import for_evaluation_only
from .derived import derive_pool, derive_quality
from .ood import asked_again, known_to
from .readers import FORMATS
from .rows import AnyTask, Row, read_rows
from .validation import cut

#: Problems of one kind that are told one by one; how many more there are is told by their number.
MOST = 50


def at_most(problems: Sequence[Problem]) -> list[Problem]:
    """The first `MOST` of a file's problems, and the number of the others at the next one."""
    if len(problems) <= MOST:
        return list(problems)
    rest = f"{len(problems) - MOST:,} more problems from here on"
    return [*problems[:MOST], replace(problems[MOST], path="", message=rest)]


class Places:
    """Where each task is written, and what is found wrong with tasks after they were read."""

    def __init__(self) -> None:
        self.file: dict[str, Path] = {}
        """By a task's id."""
        self.of: dict[str, str] = {}
        """`file:line` of a row (YAML: the file and the id), by the task's id."""
        self._found: dict[Path, dict[str, tuple[str, str, str]]] = {}

    def report(self, path: Path, where: str, task_id: str, message: str, key: str) -> None:
        """A problem with the value of a task's `key`."""
        self._found.setdefault(path, {})[where] = (task_id, key, message)

    def report_prompt(self, task: Task, message: str) -> None:
        """A problem with the prompt of a task that was read."""
        self.report(self.file[task.id], self.of[task.id], task.id, message, "prompt")

    def problems(self) -> list[Problem]:
        """What was reported since the last call, in order of the files."""
        found, self._found = self._found, {}
        return [one for path, some in found.items() for one in at_most([*_placed(path, some)])]


def _placed(path: Path, found: Mapping[str, tuple[str, str, str]]) -> Iterable[Problem]:
    if path.suffix in (".yaml", ".yml"):
        return task_places(path, {one: Fault(told, ((key,),)) for one, key, told in found.values()})
    rows = []
    for where, (_, key, message) in found.items():
        after = where.removeprefix(str(path))
        row, line = (after, 1) if after.endswith("]") else ("", int(after.removeprefix(":")))
        rows.append(Problem(str(path), line, 1, f"{row}.{key}".strip("."), message))
    return rows


@dataclass(frozen=True)
class Refusal:
    """A task that was left out: `file:line` (YAML: the task id) and why."""

    where: str
    reason: str


@dataclass
class Tasks:
    """Everything that was read, and everything that was refused."""

    train: dict[str, TrainTask] = field(default_factory=dict)
    held_out: dict[str, HeldOutTask] = field(default_factory=dict)
    validation: dict[str, ValidationTask] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    start: HarnessFile = field(default_factory=HarnessFile)
    """What the run's version 0 changes about single tasks."""
    unread: list[Problem] = field(default_factory=list)
    """Why files in a folder of evaluation-only sets could not be compared with the tasks."""

    def refusal_lines(self) -> list[str]:
        """One line a reason, with how many tasks it struck and where the first one is."""
        counts = Counter(r.reason for r in self.refused)
        first = {r.reason: r.where for r in reversed(self.refused)}
        return [f"{n} x {reason} (first: {first[reason]})" for reason, n in counts.most_common()]

    def leaks(self) -> Iterator[tuple[Task, Task]]:
        """Held-out tasks with the prompt (in its normal form) of a training or a validation task, and
        validation tasks with that of a training task; each with that one."""
        if not (self.held_out or self.validation):
            return
        known: dict[str, Task] = {normalised(task.prompt): task for task in self.train.values()}
        for apart in (self.validation, self.held_out):
            said = [(normalised(task.prompt), task) for task in apart.values()]
            yield from ((task, known[prompt]) for prompt, task in said if prompt in known)
            known = dict(said) | known

    def as_file(self) -> TaskFile:
        """The tasks as one resolved task file."""
        return TaskFile(
            train=tuple(self.train.values()),
            held_out=tuple(self.held_out.values()),
            validation=tuple(self.validation.values()),
        )


@collector_paused()
def load_tasks(loaded: LoadedSpec) -> Tasks:
    """Read every task file of a spec.

    Raises `SpecError` for files that cannot be read, ids used twice, or no training task at all.
    """
    tasks = Tasks()
    places = Places()
    problems: list[Problem] = []
    judged = loaded.spec.roles.judge is not None
    for path in loaded.task_files:
        try:
            for where, task in _read(path, tasks.refused):
                if told := _add(tasks, where, task, judged, places):
                    places.report(path, where, task.id, *told)
                places.file.setdefault(task.id, path)
                places.of.setdefault(task.id, where)
        except SpecError as error:
            problems += error.problems
    problems += places.problems()
    files = [str(path) for path in loaded.task_files]
    problems.sort(key=lambda one: (files.index(one.file), one.line, one.column))
    try:
        if loaded.start_file is not None:
            tasks.start = load_harness_file(loaded.start_file, fault)
    except SpecError as error:
        problems += error.problems
    if problems:  # what follows would be told of tasks that are only missing
        raise SpecError(problems)
    if not tasks.train:
        why = "; ".join(tasks.refusal_lines()) or "the task files hold no `train` task"
        raise SpecError([loaded.problem(("tasks", "files"), f"no task to train on: {why}")])
    if problems := [*_over_all(loaded, tasks, places)]:
        raise SpecError(problems)
    _set_apart(loaded, tasks)
    return tasks


def _over_all(loaded: LoadedSpec, tasks: Tasks, places: Places) -> Iterator[Problem]:
    """What is wrong with tasks, spec and the harness to start from, taken together."""
    yield from _guidance_leaks(loaded, tasks)
    for task, known in tasks.leaks():
        message = (
            f"a {_kind(task)} task with the prompt of a {_kind(known)} task: {task.id} is {known.id}"
        )
        places.report_prompt(task, f"{message} ({places.of[known.id]})")
    chosen_by = (*tasks.train.values(), *tasks.validation.values())
    for task, other, where in asked_again(chosen_by, known_to(loaded.task_files), tasks.unread):
        message = f"a {_kind(task)} task with the prompt of an evaluation-only one: {task.id} is"
        places.report_prompt(task, f"{message} {other} ({where})")
    yield from places.problems()
    domains = {task.domain for task in tasks.train.values()}
    shares = loaded.spec.interfaces.p.domain_shares
    if problem := check_shares(shares, domains):
        unknown = [name for name in shares if name not in domains]
        yield loaded.problem(("interfaces", "p", "domain_shares", *unknown[:1]), problem)
    if loaded.start_file is not None:
        every = chain(misfits(tasks.start, tasks.train), _start_leaks(loaded, tasks))
        found = list(islice(every, MOST))
        yield from file_places(loaded.start_file, found)


def _kind(task: Task) -> str:
    if isinstance(task, ValidationTask):
        return "validation"
    return "held-out" if isinstance(task, HeldOutTask) else "training"


def _set_apart(loaded: LoadedSpec, tasks: Tasks) -> None:
    """Validation tasks, where the run evaluates on some and the files name none."""
    logging = loaded.spec.logging
    if not logging.evaluate_every or tasks.validation:
        return
    tasks.train, tasks.validation = cut(
        tasks.train, logging.validation_share, loaded.spec.seed, tasks.start.tasks
    )
    if not tasks.validation:
        told = "no training task can be set apart for validation: each domain has one only"
        raise SpecError([loaded.problem(("logging", "evaluate_every"), told)])


def load_resolved(path: Path) -> Tasks:
    """Read a run folder's tasks.yaml."""
    file = load_task_file(path)
    return Tasks(
        {t.id: t for t in file.train},
        {t.id: t for t in file.held_out},
        {t.id: t for t in file.validation},
    )


def _guidance_leaks(loaded: LoadedSpec, tasks: Tasks) -> Iterator[Problem]:
    """Guidance that the spec mounts at the start must not repeat what a task keeps as its reference."""
    g = loaded.spec.interfaces.g
    for n, entry in enumerate(g.start):
        for task in tasks.train.values():
            if told := leak(entry.lines, task, g):
                yield loaded.problem(("interfaces", "g", "start", n, "lines"), told)
                break


def _start_leaks(loaded: LoadedSpec, tasks: Tasks) -> Iterator[Fault]:
    """Nor must what the harness file to start from mounts on it."""
    for task_id, entry in tasks.start.tasks.items():
        for n, guidance in enumerate(entry.g if task_id in tasks.train else ()):
            if told := leak(guidance.lines, tasks.train[task_id], loaded.spec.interfaces.g):
                yield Fault(told, (("tasks", task_id, "g", n, "lines"),))


def _add(tasks: Tasks, where: str, task: AnyTask, judged: bool, places: Places) -> tuple[str, str] | None:
    """Take a task in; or what is wrong with one that no run may have, and the key that says it."""
    chooses = isinstance(task, TrainTask | ValidationTask)
    if isinstance(task, OodTask) or (chooses and for_evaluation_only(task)):
        does = "chose its policy by" if isinstance(task, ValidationTask) else "trained on"
        return (
            f"{task.id} ({where}) is of {task.source}, which is for evaluation only: a run that "
            f"{does} it could not be measured with it"
        ), "source"
    if task.id in tasks.train or task.id in tasks.held_out or task.id in tasks.validation:
        return f"task id {task.id!r} ({where}) is used twice: {places.of[task.id]} has it", "id"
    reason = unscorable(task.rubric, judged)
    if reason is not None:
        tasks.refused.append(Refusal(where, reason))
    elif isinstance(task, TrainTask):
        tasks.train[task.id] = task
    elif isinstance(task, ValidationTask):
        tasks.validation[task.id] = task
    else:
        tasks.held_out[task.id] = task
    return None


def unscorable(rubric: Sequence[Criterion], judged: bool) -> str | None:
    """Why a rubric cannot be scored here (with or without a judge), or None."""
    for criterion in rubric:
        check = criterion.check
        if check is None:
            if not judged:
                return "a criterion has no check and needs a judge role; none is configured"
        elif criterion.extract is not None and not judged:
            return "a criterion with `extract` needs a judge role; none is configured"
        elif missing := missing_resource(check):
            return f"a criterion cannot be scored on this machine: {missing}"
    return None


def _read(path: Path, refused: list[Refusal]) -> Iterator[tuple[str, AnyTask]]:
    if path.suffix in (".yaml", ".yml"):
        file = load_task_file(path, fault)
        for train in file.train:
            if file.shared_pool != Pool():
                pool = _merge_pools(train, file.shared_pool)
                train = train.model_copy(update={"pool": pool})
            yield f"{path}: {train.id}", train
        for held_out in file.held_out:
            yield f"{path}: {held_out.id}", held_out
        for validation in file.validation:
            yield f"{path}: {validation.id}", validation
    elif path.suffix in FORMATS:
        for row in good_rows(path):
            if isinstance(row.task, str):
                refused.append(Refusal(row.where, row.task))
            else:
                yield row.where, _completed(row.task)
    else:
        message = (
            f"not a task file: {path.suffix or 'no suffix'}; allowed: .yaml, .yml, {', '.join(FORMATS)}"
        )
        raise SpecError([Problem(str(path), 1, 1, "", message)])


def good_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, those of data sets that are no tasks too.

    Raises `SpecError` at the end, with all that is no row at all or wrong in this project's own words.
    """
    wrong: list[Problem] = []
    for row in read_rows(path, read_on=True):
        if row.problems:
            wrong += row.problems
        else:
            yield row
    if wrong:
        raise SpecError(at_most(wrong))


def _completed(task: AnyTask) -> AnyTask:
    """A task of a data set with what the words of its prompt say: no data set has a quality or a pool."""
    if isinstance(task, OodTask) or task.origin is None or task.quality is not None:
        return task
    pool = derive_pool(task.prompt) if isinstance(task, TrainTask) else task.pool
    return task.model_copy(update={"quality": derive_quality(task.prompt), "pool": pool})


def _merge_pools(task: TrainTask, shared: Pool) -> Pool:
    taken = {c.id for c in (*task.rubric, *task.pool.criteria)}
    criteria = [c for c in shared.criteria if c.id not in taken]
    checklists: Sequence[tuple[str, ...]] = [
        c for c in shared.checklists if c not in task.pool.checklists
    ]
    return Pool(
        criteria=(*task.pool.criteria, *criteria),
        checklists=(*task.pool.checklists, *checklists),
    )
