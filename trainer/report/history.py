"""The harness over time (the fold of the accepted updates), and the story of each task under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ...memory.records import Accepted, Decision, Group
from ...memory.rollouts import Rollout
from ...specs.guidance import Guidance
from ...specs.harness import HarnessState
from ...specs.tasks import Criterion
from ...specs.updates import Update, describe
from .data import RunData

#: Visit rows on the page, all tasks together, and at least this many for each task.
MAX_ROWS = 2500
MIN_ROWS_PER_TASK = 20
MAX_TASKS = 120


@dataclass(frozen=True)
class Version:
    """One harness version and the updates that made it. Version 0 is the seed."""

    number: int
    step: int  # it acts from this step on
    updates: tuple[Update, ...]
    state: HarnessState

    @property
    def interfaces(self) -> str:
        """The interfaces it changed, as in ``cg``."""
        return "".join(sorted({update.interface for update in self.updates}))


@dataclass(frozen=True)
class Change:
    """A proposal about one task: accepted (a new harness version) or rejected."""

    kind = "change"
    step: int
    version: int | None  # None: rejected
    words: str
    rationale: str
    lines: tuple[str, ...]  # the checklist of a `mount`
    decision: int | None  # row of the decisions table
    reason: str


@dataclass(frozen=True)
class Visit:
    """One group of one task, and the harness it was rolled out under."""

    kind = "visit"
    group: Group
    rubric: tuple[Criterion, ...]  # c_t of the task; empty when tasks.yaml is missing
    seed_criteria: int  # how many of them are the task's own
    guidance: tuple[Guidance, ...]
    rollouts: tuple[Rollout, ...] = ()  # empty: not on the page

    @property
    def reward(self) -> float | None:
        """Mean R_raw over the scored rollouts."""
        return _mean(self.group.rewards)

    @property
    def quality(self) -> float | None:
        """Mean oracle quality over the rollouts that the oracle was asked about."""
        return _mean(self.group.quality)

    @property
    def guided(self) -> int:
        """How many rollouts carried guidance."""
        return sum(self.group.guided)


@dataclass(frozen=True)
class Timeline:
    """What happened to one task, in order."""

    task_id: str
    domain: str
    prompt: str | None
    visits: int
    accepted: int  # updates
    rejected: int  # decisions
    rows: list[Visit | Change] = field(default_factory=list)
    omitted: int = 0  # visits left out, the oldest ones


def fold(data: RunData) -> tuple[list[Version], list[str]]:
    """Every harness version from the seed on, and a note for each one that could not be rebuilt."""
    states, notes = data.harness
    versions = [Version(0, 0, (), states[0])]
    for accepted, state in zip(data.of(Accepted), states[1:], strict=True):
        versions.append(Version(state.version, accepted.step + 1, tuple(accepted.updates), state))
    return versions, notes


def timelines(data: RunData, versions: Sequence[Version]) -> tuple[list[Timeline], int]:
    """One timeline a task: the one with most accepted updates first (then most visits, then id).

    Also returns how many tasks were left out (beyond `MAX_TASKS`).
    """
    visits = Counter(group.task_id for group in data.of(Group))
    changes = _changes(data, versions)
    accepted = {
        task_id: sum(change.version is not None for change in rows) for task_id, rows in changes.items()
    }
    order = sorted(visits.keys() | changes.keys(), key=lambda i: (-accepted.get(i, 0), -visits[i], i))
    rows_each = max(MIN_ROWS_PER_TASK, MAX_ROWS // max(1, len(order[:MAX_TASKS])))
    groups: dict[str, list[Group]] = {task_id: [] for task_id in order}
    for group in data.of(Group):
        groups[group.task_id].append(group)
    known = data.by_task
    out = []
    for task_id in order[:MAX_TASKS]:
        task = known.get(task_id)
        kept = sorted(groups[task_id], key=lambda g: (g.step, g.slot))[-rows_each:]
        rows: list[Visit | Change] = [_visit(group, versions) for group in kept]
        rows += changes.get(task_id, [])
        out.append(
            Timeline(
                task_id=task_id,
                domain=task.domain if task else next((g.domain for g in kept), ""),
                prompt=task.prompt if task else None,
                visits=visits[task_id],
                accepted=accepted.get(task_id, 0),
                rejected=len(changes.get(task_id, [])) - accepted.get(task_id, 0),
                rows=sorted(rows, key=_place),
                omitted=visits[task_id] - len(kept),
            )
        )
    return out, len(order) - len(out)


def _place(row: Visit | Change) -> tuple[int, int, int]:
    """Accepted changes act before their step's rollouts; rejections were measured after them."""
    if isinstance(row, Visit):
        return (row.group.step, 1, row.group.slot)
    return (row.step, 2 if row.version is None else 0, row.version or 0)


def _visit(group: Group, versions: Sequence[Version]) -> Visit:
    state = versions[min(group.harness_version, len(versions) - 1)].state
    task = state.tasks.get(group.task_id)
    if task is None:
        return Visit(group, (), 0, ())
    rubric = state.rubric(group.task_id)
    own = {criterion.id for criterion in task.rubric}
    seeds = sum(criterion.id in own for criterion in rubric)
    return Visit(group, rubric, seeds, state.of(group.task_id).guidance)


def _changes(data: RunData, versions: Sequence[Version]) -> dict[str, list[Change]]:
    """Accepted updates by task (from the log of versions), and rejected decisions by task."""
    decisions = data.of(Decision)
    criteria = data.criteria
    rows: dict[str, list[Change]] = {}

    def add(update: Update, step: int, version: int | None, row: int | None, reason: str) -> None:
        lines = update.lines if update.op in ("mount", "edit") and update.lines != "rubric" else ()
        words = describe(update, criteria.values())
        change = Change(step, version, words, update.rationale, lines, row, reason)
        for task_id in update.task_ids:
            rows.setdefault(task_id, []).append(change)

    by_id = {decision.id: row for row, decision in enumerate(decisions)}
    for version, accepted in zip(versions[1:], data.of(Accepted), strict=True):
        sources = [by_id[i] for i in accepted.decision_ids if i in by_id]
        for update in version.updates:
            source = next((row for row in sources if decisions[row].update == update), None)
            reason = "" if source is None else decisions[source].reason
            add(update, version.step, version.number, source, reason)
    for row, decision in enumerate(decisions):
        if not decision.accepted:
            add(decision.update, decision.step, None, row, decision.reason)
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
