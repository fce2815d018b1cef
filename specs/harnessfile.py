"""A harness as a YAML file: what `harness/NNNNNN.yaml` shows, and what a spec's `start` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from .guidance import Guidance, StartGuidance, in_order
from .harness import Evolved, HarnessState, TaskHarness, UpdateError
from .tasks import Criterion, Many, Strict, TrainTask


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


def from_file(file: HarnessFile, tasks: Mapping[str, TrainTask]) -> HarnessState:
    """The state a file describes. Raises `UpdateError` where it does not fit the tasks."""
    changes = {}
    for task_id, entry in file.tasks.items():
        if task_id not in tasks:
            raise UpdateError(f"no training task {task_id!r}")
        change = _change(entry)
        every = HarnessState(tasks, changes={task_id: change}).all_criteria(task_id)
        ids = [criterion.id for criterion in every]
        if len(set(ids)) < len(ids):
            raise UpdateError(f"{task_id}: a criterion is added that is there already")
        if unknown := change.retired - set(ids):
            raise UpdateError(f"{task_id}: no criterion {', '.join(sorted(unknown))} to retire")
        if len(ids) == len(change.retired):
            raise UpdateError(f"{task_id}: every criterion is retired")
        if len({g.field for g in entry.g}) < len(entry.g):
            raise UpdateError(f"{task_id}: a guidance field is mounted twice")
        changes[task_id] = change
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
