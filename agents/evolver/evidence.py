"""What the evolver may look at: the run's records and recorded rollouts. Training tasks only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...memory.index import MemoryIndex
from ...memory.records import Accepted, AnyRecord, Decision, Group
from ...memory.rollouts import Rollout, RolloutStore
from ...specs.guidance import Guidance, SuccessFade, strength
from ...specs.harness import HarnessState
from ...specs.tasks import Criterion, TrainTask
from ..scoring.diagnosis import as_floats, as_known, as_verdicts, collapse, pair_classes
from ..scoring.scorer import Scorer
from .observed import Observed, observe


@dataclass
class Memory:
    """M_t: every record so far, semantic search over them, and the rollouts behind them."""

    rollouts: RolloutStore
    index: MemoryIndex
    scorer: Scorer
    records: list[AnyRecord] = field(default_factory=list)
    lazy: bool = False  # index new records when it is caught up with, not at once
    _unindexed: list[AnyRecord] = field(default_factory=list)
    _groups: dict[str, list[Group]] = field(default_factory=dict)  # by task, oldest first
    _accepted: list[Accepted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sort_in(self.records)

    def _sort_in(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, Group):
                self._groups.setdefault(record.task_id, []).append(record)
            elif isinstance(record, Accepted):
                self._accepted.append(record)

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Take in new records (they are in the log already)."""
        self.records += records
        self._sort_in(records)
        self._unindexed += records
        if not self.lazy:
            self.catch_up()

    def catch_up(self) -> None:
        """Let search find all that is known."""
        self.index.add(self._unindexed)
        self._unindexed = []

    def snapshot(self, scorer: Scorer) -> Memory:
        """What is known now, for another thread, which has to `catch_up` with it first.

        Search finds nothing newer as long as this memory is lazy.
        """
        other = Memory(RolloutStore(self.rollouts.folder), self.index, scorer, list(self.records))
        other._unindexed, self._unindexed = self._unindexed, []
        return other

    def groups(self, step: int, max_staleness: int, task_id: str | None = None) -> list[Group]:
        """Groups of the last `max_staleness` steps up to `step`, oldest first."""
        if task_id is not None:
            every: Iterable[AnyRecord] = self._groups.get(task_id, ())
        else:
            every = self.records
        since = step - max_staleness
        return [r for r in every if isinstance(r, Group) and since < r.step <= step]

    def observed(
        self, decision: Decision, task_id: str, step: int, horizon: int, least: int
    ) -> Observed | None:
        """What followed an unmeasured change on a task, as known after `step` (see `observe`)."""
        groups = self._groups.get(task_id, ())
        return observe(decision, task_id, groups, self._accepted, step, horizon, least)

    def current_groups(
        self, harness: HarnessState, step: int, max_staleness: int, task_id: str
    ) -> list[Group]:
        """... of one task under today's guidance and sampling state, scored by today's rubric.

        Groups that were scored by an earlier rubric are scored again: a change of the rubric leaves
        the responses as good evidence as they were.
        """
        shows_rubric = any(g.lines == "rubric" for g in harness.of(task_id).guidance)
        since = max(
            (r.step for r in self._accepted if _other_rollouts(r, task_id, shows_rubric)),
            default=-1,
        )
        groups = [g for g in self.groups(step, max_staleness, task_id) if g.step > since]
        rubric = harness.rubric(task_id)
        return [self._rescored(harness.tasks[task_id], group, rubric) for group in groups]

    def _rescored(self, task: TrainTask, group: Group, rubric: Sequence[Criterion]) -> Group:
        if list(group.met) == [criterion.id for criterion in rubric]:
            return group
        texts = [rollout.response for rollout in self.responses(group)]
        columns = [
            as_floats(group.met[c.id])
            if c.id in group.met
            else self.scorer.verdicts(task, [c], texts, "critic")[:, 0]
            for c in rubric
        ]
        rewards_G = self.scorer.rewards(rubric, np.stack(columns, axis=1))
        return group.model_copy(
            update={
                "met": {c.id: as_verdicts(columns[k]) for k, c in enumerate(rubric)},
                "rewards": as_known(rewards_G),
                "collapse": collapse(rewards_G),
                "pairs": pair_classes(rewards_G, as_floats(group.quality), group.resolution),
            }
        )

    def strengths(self, harness: HarnessState, task_id: str, step: int, steps: int) -> list[float]:
        """How much is left at `step` (of `steps`) of each guidance field mounted on a task."""
        return [
            strength(mounted, step, steps, self._plain_rewards(task_id, mounted, step))
            for mounted in harness.of(task_id).guidance
        ]

    def _plain_rewards(self, task_id: str, mounted: Guidance, step: int) -> list[float | None]:
        """Mean clipped reward of the unguided rollouts of a task's groups since a mounting."""
        if not isinstance(mounted.fade, SuccessFade):
            return []
        groups = self.groups(step - 1, step - mounted.since, task_id)
        return [_mean_plain(group) for group in groups]

    def decisions(self, task_id: str | None = None) -> list[Decision]:
        """Decisions so far, oldest first, or those that are about a task."""
        found = [r for r in self.records if isinstance(r, Decision)]
        return [d for d in found if task_id is None or task_id in d.update.task_ids]

    def responses(self, group: Group) -> list[Rollout]:
        """The rollouts of a group, in sample order."""
        return self.rollouts.group(group.step, group.slot)


def _other_rollouts(accepted: Accepted, task_id: str, shows_rubric: bool) -> bool:
    """Did a new version change what a task's rollouts are like? (A rollback may have.)"""
    ops = ("mount", "edit", "fade", "unmount", "pause")
    touched = any(
        task_id in u.task_ids and (u.op in ops or (shows_rubric and u.interface == "c"))
        for u in accepted.updates
    )
    return touched or accepted.rolled_back_to is not None


def _mean_plain(group: Group) -> float | None:
    known = [
        min(max(reward, 0.0), 1.0)
        for reward, guided in zip(group.rewards, group.guided, strict=True)
        if reward is not None and not guided
    ]
    return float(np.mean(known)) if known else None
