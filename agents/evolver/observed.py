"""What followed a change that nobody measured: its task's signal rate in training before and after it.

An observation is weaker than a measurement: the policy moves meanwhile, and groups are few. Where nothing
is measured (`evolver.critic.test: none`, or a person's `--force`) it is all that memory knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from ...memory.records import Accepted, Decision, Group, PairClass
from ..scoring.diagnosis import as_floats, pair_classes, pool, signal_rate


@dataclass(frozen=True)
class Observed:
    """Signal rate of a task's plain rollouts, in [0, 1], before a change and after it."""

    before: float
    after: float
    groups: tuple[int, int]  # they are reckoned on: before, after

    @property
    def gain(self) -> float:
        """By how much the signal rate rose, in [-1, 1]."""
        return self.after - self.before

    def __str__(self) -> str:
        earlier, later = self.groups
        return f"signal rate {self.before:.2f} -> {self.after:.2f} over {earlier} and {later} groups"


def observe(
    decision: Decision,
    task_id: str,
    groups: Sequence[Group],
    accepted: Sequence[Accepted],
    step: int,
    horizon: int,
    least: int,
) -> Observed | None:
    """What is known after `step` of how an unmeasured change of g or c turned out on one of its tasks.

    `groups` are that task's, `accepted` the versions of the run. Counts the groups of at most `horizon`
    steps before the change came into force and of as many after it, up to the task's next change of g or
    c on either side. None where a side has fewer than `least` groups that could carry a signal; where the
    change was measured, or never came into force; and for p, which changes what is drawn and not how it
    scores.
    """
    if decision.measured is not None or decision.update.interface == "p":
        return None
    began, others = None, []
    for version in accepted:
        if decision.id in version.decision_ids:
            began = version.step
        elif _changes(version, task_id):
            others.append(version.step)
    if began is None:
        return None
    first = max([began - horizon, *(s for s in others if s <= began)])
    last = min([began + horizon, step, *(s for s in others if s > began)])
    before = _telling(g for g in groups if first < g.step <= began)
    after = _telling(g for g in groups if began < g.step <= last)
    if min(len(before), len(after)) < least:
        return None
    earlier, later = (signal_rate(pool(side)) or 0.0 for side in (before, after))
    return Observed(earlier, later, (len(before), len(after)))


def _changes(accepted: Accepted, task_id: str) -> bool:
    """Did a new version change what a task's rollouts are shown, or what is scored of them?"""
    touched = any(u.interface != "p" and task_id in u.task_ids for u in accepted.updates)
    return touched or accepted.rolled_back_to is not None


def _telling(groups: Iterable[Group]) -> list[dict[PairClass, int]]:
    """The classes of the pairs of unguided rollouts, of each group in which one could carry a signal."""
    found = []
    for group in groups:
        plain = [not guided for guided in group.guided]
        score_G, quality_G = (as_floats(compress(x, plain)) for x in (group.rewards, group.quality))
        found.append(pair_classes(score_G, quality_G, group.resolution))
    return [pairs for pairs in found if signal_rate(pairs) is not None]
