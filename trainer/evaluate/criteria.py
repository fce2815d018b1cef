"""What the verdicts on single criteria come to: by the axis that a source names, and by criterion."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .measures import Judged
from .run import Answered
from .stats import estimate
from .tables import MODES, Row, by, of_mode


@dataclass(frozen=True)
class CriterionRow:
    """How often one criterion of one task was met, over all responses."""

    set_name: str
    task_id: str
    text: str
    points: float
    good: float | None
    """Share that earned it: met, or of a penalty not met. None: never scored."""
    verdicts: int
    unscored: int


@dataclass(frozen=True)
class WorstRow:
    """A criterion of one task or of several, with the same words and points."""

    set_name: str
    text: str
    points: float
    tasks: int
    good: float
    """Share of the verdicts that earned it."""
    verdicts: int
    unscored: int


def axis_rows(answered: Sequence[Answered], seed: int) -> list[Row]:
    """Share of criteria that were earned, by the axis that the source names: of a task's verdicts, and
    then over the tasks that have the axis."""
    out = []
    for name, some in by(answered, lambda a: a.set_name).items():
        for mode in MODES:
            shares: dict[str, list[float]] = defaultdict(list)
            seen: Counter[str] = Counter()
            unscored: Counter[str] = Counter()
            tasks: Counter[str] = Counter()
            for a in some:
                verdicts = [v for r in of_mode(a, mode) for v in r.verdicts]
                for axis, mine in by(verdicts, axis_of).items():
                    good = [earned(v) for v in mine]
                    known = [g for g in good if g is not None]
                    tasks[axis] += 1
                    seen[axis] += len(good)
                    unscored[axis] += len(good) - len(known)
                    if known:
                        shares[axis].append(float(np.mean(known)))
            for axis in sorted(seen, key=lambda one: (one == "", one)):
                found = estimate(shares[axis], [1.0] * len(shares[axis]), seed)
                part = axis or "no axis"
                out.append(
                    Row(
                        name,
                        part,
                        mode,
                        "criteria earned",
                        found,
                        tasks[axis],
                        seen[axis],
                        unscored[axis],
                        {},
                    )
                )
    named = {row.set_name for row in out if row.part != "no axis"}
    return [row for row in out if row.set_name in named]  # a set without any axis says nothing here


def criterion_rows(answered: Sequence[Answered]) -> list[CriterionRow]:
    """Every criterion of every task, those that are earned least first."""
    out = []
    for a in answered:
        verdicts: dict[str, list[Judged]] = by(
            [v for r in a.responses for v in r.verdicts], lambda v: v.criterion.id
        )
        for same in verdicts.values():
            good = [g for g in map(earned, same) if g is not None]
            criterion = same[0].criterion
            out.append(
                CriterionRow(
                    a.set_name,
                    a.task.id,
                    criterion.text,
                    criterion.points,
                    float(np.mean(good)) if good else None,
                    len(same),
                    len(same) - len(good),
                )
            )
    return sorted(out, key=lambda row: (row.good is None, row.good or 0.0, -abs(row.points)))


def worst_rows(rows: Sequence[CriterionRow]) -> list[WorstRow]:
    """Criteria that are not always earned, each once however many tasks of a set have it, those that are
    earned least first."""
    same: dict[tuple[str, str, float], list[CriterionRow]] = defaultdict(list)
    for row in rows:
        if row.good is not None:
            same[row.set_name, row.text, row.points].append(row)
    out = []
    for (set_name, text, points), some in same.items():
        scored = [row.verdicts - row.unscored for row in some]
        good = float(np.average([row.good or 0.0 for row in some], weights=scored))
        verdicts, unscored = sum(row.verdicts for row in some), sum(row.unscored for row in some)
        out.append(WorstRow(set_name, text, points, len(some), good, verdicts, unscored))
    left = [row for row in out if row.good < 1.0]
    return sorted(left, key=lambda row: (row.good, -abs(row.points), -row.tasks))


def earned(verdict: Judged) -> float | None:
    """1 for a criterion that is met, or a penalty that is not; None unscored."""
    if verdict.met is None:
        return None
    return float(verdict.met == (verdict.criterion.points > 0))


def axis_of(verdict: Judged) -> str:
    """The axis that a criterion's tags name, or an empty string."""
    tags = verdict.criterion.tags or ()
    return next((tag.removeprefix("axis:") for tag in tags if tag.startswith("axis:")), "")
