"""The harness state H = (p, g, c) as the fold of accepted updates over the seed tasks.

`HarnessState` is immutable. It stores only what differs from the seed, per task, so applying an
update and materialising one task cost as much as that task's own changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .tasks import Criterion, TrainTask
from .updates import Add, Boost, Mount, Pause, Restore, Resume, Retire, Unmount, Update


class UpdateError(ValueError):
    """The update cannot be applied to this state; the message says why and what is allowed."""


@dataclass(frozen=True)
class Guidance:
    """Text mounted on `share` (0..1) of a group's rollouts."""

    checklist: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class TaskHarness:
    """What the harness changes about one task. The default changes nothing."""

    boost: float = 1.0
    paused: bool = False
    guidance: Guidance | None = None
    added: tuple[Criterion, ...] = ()
    retired: frozenset[str] = frozenset()


@dataclass(frozen=True)
class HarnessState:
    """One version of the harness. `version` counts accepted update batches, from 0."""

    tasks: Mapping[str, TrainTask]
    version: int = 0
    changes: Mapping[str, TaskHarness] = field(default_factory=dict)

    def of(self, task_id: str) -> TaskHarness:
        """The changes of one task (a default `TaskHarness` if it has none)."""
        return self.changes.get(task_id, TaskHarness())

    def rubric(self, task_id: str) -> tuple[Criterion, ...]:
        """c_t for a task: its seed and added criteria, less the retired ones."""
        change = self.of(task_id)
        every = (*self.tasks[task_id].rubric, *change.added)
        return tuple(criterion for criterion in every if criterion.id not in change.retired)

    def all_criteria(self, task_id: str) -> tuple[Criterion, ...]:
        """Every criterion the task has ever had here, retired ones too."""
        return (*self.tasks[task_id].rubric, *self.of(task_id).added)

    def weight(self, task_id: str, paused_weight: float) -> float:
        """p_t's weight of a task inside its domain; `paused_weight` is the floor of a paused task."""
        change = self.of(task_id)
        return paused_weight if change.paused else change.boost

    def export(self) -> dict[str, Any]:
        """The state as plain data, for `harness/NNNNNN.yaml` (a view: the event log is the source)."""
        out: dict[str, Any] = {}
        for task_id, change in sorted(self.changes.items()):
            out[task_id] = {
                "p": {"boost": change.boost, "paused": change.paused},
                "g": None
                if change.guidance is None
                else {"checklist": list(change.guidance.checklist), "share": change.guidance.share},
                "c": {
                    "added": [c.model_dump(mode="json", exclude_none=True) for c in change.added],
                    "retired": sorted(change.retired),
                },
            }
        return {"version": self.version, "tasks": out}


def apply(state: HarnessState, updates: Iterable[Update]) -> HarnessState:
    """Apply one batch of updates: the next version, or `UpdateError` and nothing changed."""
    changes = dict(state.changes)
    for update in updates:
        for task_id in update.task_ids:
            if task_id not in state.tasks:
                raise UpdateError(f"{update.op}: no training task {task_id!r}")
            interim = HarnessState(state.tasks, state.version, changes)
            changes[task_id] = _apply_one(interim, task_id, update)
    return HarnessState(state.tasks, state.version + 1, changes)


def _apply_one(state: HarnessState, task_id: str, update: Update) -> TaskHarness:
    change = state.of(task_id)
    match update:
        case Boost():
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
            return replace(change, guidance=Guidance(update.checklist, update.share))
        case Unmount():
            if change.guidance is None:
                raise UpdateError(f"unmount: {task_id} carries no guidance")
            return replace(change, guidance=None)
        case Add():
            if update.criterion.id in {c.id for c in state.all_criteria(task_id)}:
                raise UpdateError(f"add: {task_id} has criterion {update.criterion.id} already")
            return replace(change, added=(*change.added, update.criterion))
        case Retire():
            active = {c.id for c in state.rubric(task_id)}
            if update.criterion_id not in active:
                raise UpdateError(f"retire: {update.criterion_id} is not scored on {task_id}")
            if len(active) == 1:
                raise UpdateError(f"retire: {update.criterion_id} is the last criterion of {task_id}")
            return replace(change, retired=change.retired | {update.criterion_id})
        case Restore():
            if update.criterion_id not in change.retired:
                raise UpdateError(f"restore: {update.criterion_id} is not retired on {task_id}")
            return replace(change, retired=change.retired - {update.criterion_id})
