"""A harness as a YAML file: what `harness/NNNNNN.yaml` shows, and what a spec's `start` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from .errors import did_you_mean
from .faults import Fault, fault
from .guidance import Guidance, StartGuidance, in_order
from .harness import Evolved, HarnessState, TaskHarness, UpdateError
from .strict import Many, Strict
from .tasks import Criterion, TrainTask


class SamplingEntry(Strict):
    """p of one task."""

    boost: Annotated[float, Field(gt=0.0)] = 1.0
    """What its sampling weight is multiplied by."""
    paused: bool = False
    """Sampled at the floor only."""


class GuidanceEntry(StartGuidance):
    """One mounted guidance field of a task."""

    since: int = 0
    """The step it was mounted for."""


class AddedCriterion(Strict):
    """A criterion that a run brought in."""

    criterion: Criterion
    """The criterion itself."""
    how: str = "add"
    """The update that made it."""
    parents: Many[str] = ()
    """Ids of the criteria it replaced."""
    version: int = 0
    """The harness version it came in with."""


class RubricEntry(Strict):
    """c of one task, beside its seed rubric."""

    added: Many[AddedCriterion] = ()
    """Criteria that were brought in, retired ones too."""
    retired: Many[str] = ()
    """Ids of criteria that are no longer scored."""


class TaskEntry(Strict):
    """What the harness changes about one task."""

    p: SamplingEntry = SamplingEntry()
    """Its sampling weight."""
    g: Many[GuidanceEntry] = ()
    """Its guidance, at most one entry a field."""
    c: RubricEntry = RubricEntry()
    """Its criteria."""


class HarnessFile(Strict):
    """A harness version: the tasks it changes, and how."""

    version: int = 0
    """The version that was exported."""
    tasks: dict[str, TaskEntry] = Field(default_factory=dict)
    """Task id to what is changed about it."""


def to_file(state: HarnessState) -> HarnessFile:
    """A harness state as a file's content."""
    return HarnessFile(
        version=state.version,
        tasks={task_id: _entry(change) for task_id, change in sorted(state.changes.items())},
    )


def _entry(change: TaskHarness) -> TaskEntry:
    return TaskEntry(
        p=SamplingEntry(boost=change.boost, paused=change.paused),
        g=tuple(
            GuidanceEntry(field=g.field, lines=g.lines, share=g.share, fade=g.fade, since=g.since)
            for g in change.guidance
        ),
        c=RubricEntry(
            added=tuple(
                AddedCriterion(criterion=e.criterion, how=e.how, parents=e.parents, version=e.version)
                for e in change.added
            ),
            retired=tuple(sorted(change.retired)),
        ),
    )


def misfits(file: HarnessFile, tasks: Mapping[str, TrainTask]) -> Iterator[Fault]:
    """Everything for which a file does not fit the tasks."""
    for task_id, entry in file.tasks.items():
        at = ("tasks", task_id)
        if task_id not in tasks:
            yield fault(f"no training task {task_id!r}{did_you_mean(task_id, tasks)}", at)
            continue
        seed = [criterion.id for criterion in tasks[task_id].rubric]
        added = [one.criterion.id for one in entry.c.added]
        for n, name in enumerate(added):
            if name in seed or name in added[:n]:
                told = f"{task_id}: a criterion is added that is there already"
                yield fault(told, (*at, "c", "added", n))
        every = dict.fromkeys([*seed, *added])
        for n, name in enumerate(entry.c.retired):
            if name not in every:
                told = f"{task_id}: no criterion {name} to retire{did_you_mean(name, every)}"
                yield fault(f"{told}; it has {', '.join(every)}", (*at, "c", "retired", n))
        if set(entry.c.retired) >= set(every):
            yield fault(f"{task_id}: every criterion is retired", (*at, "c", "retired"))
        fields = [guidance.field for guidance in entry.g]
        for n, field in enumerate(fields):
            if field in fields[:n]:
                yield fault(f"{task_id}: a guidance field is mounted twice", (*at, "g", n, "field"))


def from_file(file: HarnessFile, tasks: Mapping[str, TrainTask]) -> HarnessState:
    """The state a file describes. Raises `UpdateError` where it does not fit the tasks."""
    for misfit in misfits(file, tasks):
        raise UpdateError(misfit.message)
    changes = {task_id: _change(entry) for task_id, entry in file.tasks.items()}
    return HarnessState(tasks, file.version, changes)


def begin_with(file: HarnessFile, tasks: Mapping[str, TrainTask]) -> HarnessState:
    """A new run's version 0 with this content: fades start anew. Raises `UpdateError`."""
    state = from_file(file, tasks)
    changes = {
        task_id: replace(change, guidance=tuple(replace(g, since=0) for g in change.guidance))
        for task_id, change in state.changes.items()
    }
    return replace(state, version=0, changes=changes)


def _change(entry: TaskEntry) -> TaskHarness:
    return TaskHarness(
        boost=entry.p.boost,
        paused=entry.p.paused,
        guidance=in_order(Guidance(g.field, g.lines, g.share, g.fade, g.since) for g in entry.g),
        added=tuple(Evolved(a.criterion, a.how, a.parents, a.version) for a in entry.c.added),
        retired=frozenset(entry.c.retired),
    )
