"""What the evolver may look at: the run's records and recorded rollouts. Training tasks only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...memory.index import MemoryIndex
from ...memory.records import Accepted, AnyRecord, Decision, Group
from ...memory.rollouts import Rollout, RolloutStore


@dataclass
class Memory:
    """M_t: every record so far, the rollouts behind them, and semantic search over both."""

    rollouts: RolloutStore
    index: MemoryIndex
    records: list[AnyRecord] = field(default_factory=list)

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Take in new records (they are in the log already)."""
        self.records += records
        self.index.add(records)

    def groups(self, step: int, max_staleness: int, task_id: str | None = None) -> list[Group]:
        """Groups of the last `max_staleness` steps up to `step`, oldest first."""
        return [
            r
            for r in self.records
            if isinstance(r, Group)
            and step - max_staleness < r.step <= step
            and (task_id is None or r.task_id == task_id)
        ]

    def current_groups(self, step: int, max_staleness: int, task_id: str) -> list[Group]:
        """... of one task, scored by today's rubric, under today's guidance, since it was paused."""
        changed = [
            r.step
            for r in self.records
            if isinstance(r, Accepted)
            for u in r.updates
            if task_id in u.task_ids and u.op not in ("boost", "resume")
        ]
        last = max(changed, default=-1)
        return [g for g in self.groups(step, max_staleness, task_id) if g.step > last]

    def decisions(self, task_id: str | None = None) -> list[Decision]:
        """Decisions so far, oldest first."""
        found = [r for r in self.records if isinstance(r, Decision)]
        return [d for d in found if task_id is None or d.task_id == task_id]

    def responses(self, group: Group) -> list[Rollout]:
        """The rollouts of a group, in sample order."""
        return self.rollouts.group(group.step, group.slot)
