"""The harness state H = (p, g, c) as the fold of accepted updates over the seed tasks.

`HarnessState` is immutable. It stores only what differs from the seed, per task, so applying an
update and materialising one task cost as much as that task's own changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .errors import Steps, did_you_mean
from .faults import Fault, fault
from .guidance import Guidance, GuidanceField, in_order
from .tasks import Criterion, TrainTask
from .updates import (
    Add,
    Boost,
    Dampen,
    Edit,
    Gate,
    Merge,
    Mount,
    Pause,
    Restore,
    Resume,
    Retire,
    Reweight,
    Rewrite,
    SamplingUpdate,
    SetFade,
    Split,
    Unmount,
    Update,
)


class UpdateError(ValueError):
    """The update cannot be applied to this state; the message says why and what is allowed.

    `at` is the place of the value at fault in the update; (): the task it is applied to.
    """

    def __init__(self, message: str, *at: str | int) -> None:
        self.at = at
        super().__init__(message)


@dataclass(frozen=True)
class Evolved:
    """A criterion that the run brought in, and where it comes from."""

    criterion: Criterion
    how: str  # the op that made it: add, rewrite, split, merge, reweight or gate
    parents: tuple[str, ...] = ()  # ids of the criteria it replaced
    version: int = 0  # the harness version it came in with


@dataclass(frozen=True)
class TaskHarness:
    """What the harness changes about one task. The default changes nothing."""

    boost: float = 1.0
    paused: bool = False
    guidance: tuple[Guidance, ...] = ()  # at most one a field, in the order of FIELDS
    added: tuple[Evolved, ...] = ()
    retired: frozenset[str] = frozenset()

    def field(self, name: GuidanceField) -> Guidance | None:
        """What is mounted in a guidance field."""
        return next((g for g in self.guidance if g.field == name), None)


@dataclass(frozen=True)
class HarnessState:
    """One version of the harness. `version` counts accepted update batches, from 0."""

    tasks: Mapping[str, TrainTask]
    version: int = 0
    changes: Mapping[str, TaskHarness] = field(default_factory=dict)
    start: TaskHarness = TaskHarness()
    """What the run starts every task with (`interfaces.g.start`)."""

    def of(self, task_id: str) -> TaskHarness:
        """The changes of one task (those of the start if it has no other)."""
        return self.changes.get(task_id, self.start)

    def rubric(self, task_id: str) -> tuple[Criterion, ...]:
        """c_t for a task: its seed and added criteria, less the retired ones."""
        retired = self.of(task_id).retired
        if not retired:
            return self.all_criteria(task_id)
        return tuple(c for c in self.all_criteria(task_id) if c.id not in retired)

    def all_criteria(self, task_id: str) -> tuple[Criterion, ...]:
        """Every criterion the task has ever had here, retired ones too."""
        added = (evolved.criterion for evolved in self.of(task_id).added)
        return (*self.tasks[task_id].rubric, *added)

    def weight(self, task_id: str, paused_weight: float) -> float:
        """p_t's weight of a task inside its domain; `paused_weight` is the floor of a paused task."""
        change = self.of(task_id)
        return paused_weight if change.paused else change.boost


def check_shares(domain_shares: Mapping[str, float], domains: Collection[str]) -> str | None:
    """What is wrong with shares for these domains, or None. Empty shares are the default."""
    missing = sorted(set(domains) - set(domain_shares))
    unknown = sorted(set(domain_shares) - set(domains))
    if not domain_shares or not (missing or unknown):
        return None
    told = [f"no share for {', '.join(missing)}"] if missing else []
    told += [f"no task of {name}{did_you_mean(name, missing or domains)}" for name in unknown]
    return f"{'; '.join(told)}; allowed: a share for each of {', '.join(sorted(domains))}, or none"


def apply(state: HarnessState, updates: Iterable[Update], after_step: int = -1) -> HarnessState:
    """Apply one batch of updates: the next version, or `UpdateError` and nothing changed.

    The batch acts from the step after `after_step` on (fades count from there).
    """
    changes = dict(state.changes)
    interim = replace(state, version=state.version + 1, changes=changes)
    for update in updates:
        if isinstance(update, SamplingUpdate) and (update.domains or update.tags):
            raise UpdateError(f"{update.op}: domains and tags have to be resolved to tasks first")
        for task_id in update.task_ids:
            if task_id not in state.tasks:
                raise UpdateError(f"{update.op}: no training task {task_id!r}")
            changes[task_id] = _apply_one(interim, task_id, update, after_step + 1)
    return interim


def misfits(state: HarnessState, update: Update) -> Iterator[Fault]:
    """Everything for which an update cannot be applied to the tasks that there are, task by task."""
    for n, task_id in enumerate(update.task_ids):
        if task_id in state.tasks:
            try:
                _apply_one(state, task_id, update, 0)
            except UpdateError as error:
                yield fault(str(error), *((error.at,) if error.at else ()), ("task_ids", n))


def roll_back(state: HarnessState, earlier: HarnessState) -> HarnessState:
    """The next version, with the content of an earlier one."""
    return replace(earlier, version=state.version + 1)


def diff(before: HarnessState, after: HarnessState) -> dict[str, tuple[TaskHarness, TaskHarness]]:
    """The tasks whose harness differs, in order of their ids, with what it is in either state."""
    ids = sorted(before.changes.keys() | after.changes.keys())
    pairs = ((task_id, before.of(task_id), after.of(task_id)) for task_id in ids)
    return {task_id: (old, new) for task_id, old, new in pairs if old is not new and old != new}


def _apply_one(state: HarnessState, task_id: str, update: Update, step: int) -> TaskHarness:
    change = state.of(task_id)
    match update:
        case Boost() | Dampen():
            return replace(change, boost=change.boost * update.factor)
        case Pause():
            if change.paused:
                raise UpdateError(f"pause: {task_id} is paused already")
            return replace(change, paused=True)
        case Resume():
            if not change.paused:
                raise UpdateError(f"resume: {task_id} is not paused")
            return replace(change, paused=False)
        case Mount():
            return _mount(change, Guidance(update.field, update.lines, update.share, update.fade, step))
        case Edit():
            return _mount(change, replace(_mounted(change, task_id, update), lines=update.lines))
        case SetFade():
            faded = replace(_mounted(change, task_id, update), fade=update.fade, since=step)
            return _mount(change, faded)
        case Unmount():
            _mounted(change, task_id, update)
            kept = tuple(g for g in change.guidance if g.field != update.field)
            return replace(change, guidance=kept)
        case Add():
            return _replace_criteria(state, task_id, update.op, (), (update.criterion,))
        case Rewrite():
            gone = (update.criterion_id,)
            return _replace_criteria(state, task_id, update.op, gone, (update.criterion,))
        case Split():
            return _replace_criteria(state, task_id, update.op, (update.criterion_id,), update.criteria)
        case Merge():
            return _replace_criteria(state, task_id, update.op, update.criterion_ids, (update.criterion,))
        case Reweight() | Gate():
            new = _changed(state, task_id, update)
            return _replace_criteria(state, task_id, update.op, (update.criterion_id,), (new,))
        case Retire():
            return _replace_criteria(state, task_id, update.op, (update.criterion_id,), ())
        case Restore():
            if update.criterion_id not in change.retired:
                raise UpdateError(
                    f"restore: {update.criterion_id} is not retired on {task_id}", "criterion_id"
                )
            return replace(change, retired=change.retired - {update.criterion_id})


# --- g ---------------------------------------------------------------------------------------------


def _mounted(change: TaskHarness, task_id: str, update: Edit | SetFade | Unmount) -> Guidance:
    found = change.field(update.field)
    if found is None:
        has = ", ".join(g.field for g in change.guidance) or "no guidance"
        raise UpdateError(f"{update.op}: {task_id} carries no {update.field}; it carries {has}", "field")
    return found


def _mount(change: TaskHarness, guidance: Guidance) -> TaskHarness:
    return replace(change, guidance=in_order((*change.guidance, guidance)))


# --- c ---------------------------------------------------------------------------------------------


def _active(
    state: HarnessState, task_id: str, op: str, criterion_id: str, at: Steps = ("criterion_id",)
) -> Criterion:
    rubric = {criterion.id: criterion for criterion in state.rubric(task_id)}
    if criterion_id not in rubric:
        told = f"{op}: {criterion_id} is not scored on {task_id}; it has {', '.join(rubric)}"
        raise UpdateError(told + did_you_mean(criterion_id, rubric), *at)
    return rubric[criterion_id]


def _changed(state: HarnessState, task_id: str, update: Reweight | Gate) -> Criterion:
    """A criterion with other points or another gate."""
    old = _active(state, task_id, update.op, update.criterion_id)
    if isinstance(update, Gate):
        return old.model_copy(update={"gate": update.cap})
    if (update.points > 0) != (old.points > 0):
        raise UpdateError(
            f"reweight: {update.points:+g} points for {old.id}, which has {old.points:+g}; "
            "allowed: the same sign",
            "points",
        )
    return old.model_copy(update={"points": update.points})


def _replace_criteria(
    state: HarnessState, task_id: str, op: str, gone: Sequence[str], new: Sequence[Criterion]
) -> TaskHarness:
    """Retire some criteria and score others instead. What once was scored is never erased."""
    change = state.of(task_id)
    retired, added = set(change.retired), list(change.added)
    for n, criterion_id in enumerate(gone):
        at: Steps = ("criterion_ids", n) if op == "merge" else ("criterion_id",)
        _active(state, task_id, op, criterion_id, at)
        retired.add(criterion_id)
    known = {criterion.id for criterion in state.all_criteria(task_id)}
    for criterion in new:
        if criterion.id in gone:
            raise UpdateError(f"{op}: {criterion.id} of {task_id} is just that already", "criterion")
        if criterion.id not in known:
            known.add(criterion.id)
            added.append(Evolved(criterion, op, tuple(gone), state.version))
        elif criterion.id in retired and gone:
            retired.remove(criterion.id)  # what it was before, or once: that criterion comes back
        else:
            raise UpdateError(f"{op}: {task_id} has criterion {criterion.id} already", "criterion")
    if len(known) == len(retired):
        raise UpdateError(f"{op}: {', '.join(gone)} is the last criterion of {task_id}")
    return replace(change, added=tuple(added), retired=frozenset(retired))
