"""Task files to tasks. A row that cannot be trained on is refused with a reason, never dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...agents.scoring.checks import missing_resource
from ...agents.scoring.plugins import fault
from ...specs.errors import Problem
from ...specs.guidance import overlap
from ...specs.harness import UpdateError
from ...specs.harnessfile import HarnessFile, begin_with
from ...specs.loader import LoadedSpec, SpecError, collector_paused, load_harness_file, load_task_file
from ...specs.ood import OodTask
from ...specs.sampling import check_shares
from ...specs.tasks import Criterion, HeldOutTask, Pool, TaskFile, TrainTask, ValidationTask
from .converters import for_evaluation_only
from .derived import derive_pool, derive_quality
from .duplicates import plain
from .readers import FORMATS
from .rows import AnyTask, read_rows
from .validation import cut


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

    def refusal_lines(self) -> list[str]:
        """One line a reason, with how many tasks it struck and where the first one is."""
        counts = Counter(r.reason for r in self.refused)
        first = {r.reason: r.where for r in reversed(self.refused)}
        return [f"{n} x {reason} (first: {first[reason]})" for reason, n in counts.most_common()]

    def leaks(self) -> str | None:
        """Held-out prompts that are training prompts too, up to case, spacing and punctuation."""
        known = {plain(task.prompt): task.id for task in self.train.values()}
        twice = [
            f"{task.id} is {known[plain(task.prompt)]}"
            for task in (*self.held_out.values(), *self.validation.values())
            if plain(task.prompt) in known
        ]
        if not twice:
            return None
        more = f" and {len(twice) - 3} more" if len(twice) > 3 else ""
        return f"held-out tasks with the prompt of a training task: {', '.join(twice[:3])}{more}"

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
    for n, path in enumerate(loaded.task_files):
        try:
            for where, task in _read(path, tasks.refused):
                _add(tasks, where, task, loaded.spec.roles.judge is not None)
        except _UnusableError as error:
            raise SpecError([loaded.problem(("tasks", "files", n), str(error))]) from None
    if not tasks.train:
        why = "; ".join(tasks.refusal_lines()) or "the task files hold no `train` task"
        raise SpecError([loaded.problem(("tasks", "files"), f"no task to train on: {why}")])
    _check_guidance_leaks(loaded, tasks)
    if leaks := tasks.leaks():
        raise SpecError([loaded.problem(("tasks", "files"), leaks)])
    domains = {task.domain for task in tasks.train.values()}
    if problem := check_shares(loaded.spec.interfaces.p.domain_shares, domains):
        at = ("interfaces", "p", "domain_shares")
        raise SpecError([loaded.problem(at, problem)])
    if loaded.start_file is not None:
        tasks.start = load_harness_file(loaded.start_file, fault)
        try:
            begin_with(tasks.start, tasks.train)
        except UpdateError as error:
            raise SpecError([Problem(str(loaded.start_file), 1, 1, "tasks", str(error))]) from None
    _set_apart(loaded, tasks)
    return tasks


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


def _check_guidance_leaks(loaded: LoadedSpec, tasks: Tasks) -> None:
    """Guidance from the start must not repeat what a task keeps as its reference."""
    g = loaded.spec.interfaces.g
    for n, entry in enumerate(g.start):
        for task in tasks.train.values():
            if entry.lines != "rubric" and task.reference:
                share = overlap(entry.lines, task.reference)
                if share > g.max_overlap:
                    message = (
                        f"a leak: {share:.0%} of its 4-word runs are in the reference of {task.id} "
                        f"(interfaces.g.max_overlap {g.max_overlap:g})"
                    )
                    at = ("interfaces", "g", "start", n, "lines")
                    raise SpecError([loaded.problem(at, message)])


class _UnusableError(Exception):
    """A task that no run may have: its id is used twice, or its set is for evaluation only."""


def _add(tasks: Tasks, where: str, task: AnyTask, judged: bool) -> None:
    chooses = isinstance(task, TrainTask | ValidationTask)
    if isinstance(task, OodTask) or (chooses and for_evaluation_only(task)):
        does = "chose its policy by" if isinstance(task, ValidationTask) else "trained on"
        raise _UnusableError(
            f"{task.id} ({where}) is of {task.source}, which is for evaluation only: a run that "
            f"{does} it could not be measured with it"
        )
    if task.id in tasks.train or task.id in tasks.held_out or task.id in tasks.validation:
        raise _UnusableError(f"task id {task.id!r} ({where}) is used twice")
    reason = unscorable(task.rubric, judged)
    if reason is not None:
        tasks.refused.append(Refusal(where, reason))
    elif isinstance(task, TrainTask):
        tasks.train[task.id] = task
    elif isinstance(task, ValidationTask):
        tasks.validation[task.id] = task
    else:
        tasks.held_out[task.id] = task


def unscorable(rubric: Sequence[Criterion], judged: bool) -> str | None:
    """Why a rubric cannot be scored here (with or without a judge), or None."""
    if not judged and any(criterion.check is None for criterion in rubric):
        return "a criterion has no check and needs a judge role; none is configured"
    if not judged and any(criterion.needs_judge for criterion in rubric):
        return "a criterion with `extract` needs a judge role; none is configured"
    for criterion in rubric:
        if criterion.check is not None and (missing := missing_resource(criterion.check)):
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
        for row in read_rows(path):
            if isinstance(row.task, str):
                refused.append(Refusal(row.where, row.task))
            else:
                yield row.where, _completed(row.task)
    else:
        message = (
            f"not a task file: {path.suffix or 'no suffix'}; allowed: .yaml, .yml, {', '.join(FORMATS)}"
        )
        raise SpecError([Problem(str(path), 1, 1, "", message)])


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
