"""Failure classes and signal rate of a run folder in detail: a table for people, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...agents.scoring.breakdown import By, Row, breakdown
from ...agents.scoring.diagnosis import COLLAPSES, LEVEL
from ...memory.records import Group, PairClass
from ...specs.errors import did_you_mean
from ...specs.printable import neutralise
from ...specs.tasks import Criterion
from .data import RunData, load_run
from .text import interval, number, plural

#: Shares of the pairs with known score and quality, under the titles (two lines) of their columns.
SHARES: tuple[tuple[str, tuple[PairClass, ...]], ...] = (
    ("informa-\ntive", ("informative",)),
    ("spuri-\nous", ("spurious",)),
    ("inver-\nsion", ("inversion",)),
    ("blind\nlow", ("blind_low",)),
    ("blind\nmid", ("blind_mid",)),
    ("blind\nhigh", ("blind_high",)),
    ("other\nties", ("blind_spread", "neutral")),
)
#: Criteria on the page; `harnessrl diagnose` has them all.
MAX_ROWS = 20
MAX_TEXT = 60  # characters of a criterion


class NothingToDiagnoseError(ValueError):
    """There is no group to look at; the message says why."""


@dataclass(frozen=True)
class Diagnosed:
    """The rows of a run, and what has to be said beside them."""

    by: By
    groups: Sequence[Group]
    rows: list[Row]
    criteria: dict[str, Criterion]
    unknown_criteria: int  # scored, but nothing in the run folder says what they are

    @property
    def notes(self) -> Iterator[str]:
        """What the table is of, and which of its figures are unknown."""
        steps = sorted({group.step for group in self.groups})
        judged = sum(any(q is not None for q in group.quality) for group in self.groups)
        score = "what each criterion alone says" if self.by == "criterion" else "the whole reward"
        span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        yield f"{plural(len(self.groups), 'group')} of {span}; score: {score}"
        yield "tied at l/m/h: groups whose scores all tie at the floor, between, at the ceiling"
        if not judged:
            yield (
                "unknown without an oracle: signal rate and failure classes; "
                "only where scores collapse can be told"
            )
        elif judged < len(self.groups):
            yield f"the oracle was asked about {judged} of them: signal rate and classes are of those"
        if self.unknown_criteria:
            n = self.unknown_criteria
            noun = "criterion" if n == 1 else "criteria"
            yield f"left out: {n} scored {noun} whose text and points the run folder does not have"

    def name(self, row: Row) -> str:
        """What a row is about, on one line."""
        if self.by != "criterion":
            return neutralise(row.key)
        return criterion_name(self.criteria[row.key], row)

    def as_json(self) -> dict[str, Any]:
        """Everything, in plain values. Unknown figures are null."""
        steps = [group.step for group in self.groups]
        rows = []
        for row in self.rows:
            values = asdict(row) | {"known_pairs": row.known}
            if self.by == "criterion":
                criterion = self.criteria[row.key]
                values |= {"text": criterion.text, "points": criterion.points}
            rows.append(values)
        return {
            "by": self.by,
            "first_step": min(steps),
            "last_step": max(steps),
            "groups": len(self.groups),
            "interval_level": LEVEL,
            "notes": list(self.notes),
            "rows": rows,
        }


def criterion_name(criterion: Criterion, row: Row) -> str:
    """Points, text (cut) and where it is scored."""
    text = " ".join(neutralise(criterion.text).split())
    cut = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
    where = row.task_ids[0] if len(row.task_ids) == 1 else plural(len(row.task_ids), "task")
    return f"{criterion.points:+g}  {cut}  [{neutralise(where)}]"


def diagnose_run(run: Path, by: By, task: str | None = None, last: int | None = None) -> Diagnosed:
    """Diagnose the groups of a run folder: of one task, of the last so many steps.

    Raises `NothingToDiagnoseError`, or `LogError` for a log that cannot be read.
    """
    data = load_run(run)
    groups = data.of(Group)
    if not groups:
        raise NothingToDiagnoseError(f"{run}: no group of rollouts is on record yet")
    if last is not None:
        newest = max(group.step for group in groups)
        groups = [group for group in groups if group.step > newest - last]
    if task is not None:
        known = {group.task_id for group in groups}
        groups = [group for group in groups if group.task_id == task]
        if not groups:
            raise NothingToDiagnoseError(
                f"{run}: no group of task {task}{did_you_mean(task, known)}; allowed: "
                f"{', '.join(sorted(known))}"
            )
    return diagnosed(data, groups, by)


def diagnosed(data: RunData, groups: Sequence[Group], by: By) -> Diagnosed:
    """The rows of some groups of a run, with its criteria."""
    seed = data.spec.seed if data.spec else 0
    scored = {name for group in groups for name in group.met}
    unknown = len(scored - data.criteria.keys()) if by == "criterion" else 0
    return Diagnosed(by, groups, breakdown(groups, by, data.criteria, seed), data.criteria, unknown)


def table(found: Diagnosed, shares: bool = True) -> tuple[list[str], list[list[str]]]:
    """Titles (of two lines) and cells, the name last; a dash is unknown.

    `shares`: with the failure classes, of the pairs whose score and quality are known.
    """
    classes = SHARES if shares else ()
    titles = [
        "signal\nrate",
        f"{LEVEL:.0%}\ninterval",
        "\ngroups",
        "tied at\nl/m/h",
        "known\npairs",
        *(title for title, _ in classes),
        f"\n{found.by}",
    ]
    rows = []
    for row in found.rows:
        collapsed = "/".join(str(row.collapse[where]) for where in COLLAPSES[:3])
        rows.append(
            [
                number(row.signal_rate, 2),
                interval(row.interval, 2),
                str(row.groups),
                collapsed,
                str(row.known),
                *(percent(row.share(*names)) for _, names in classes),
                found.name(row),
            ]
        )
    return titles, rows


def percent(share: float | None) -> str:
    """A share as whole percents; unknown: a dash."""
    return number(None) if share is None else f"{share:.0%}"


@dataclass(frozen=True)
class Health:
    """The tables of the report: criteria that are in force at the end, and domains."""

    criteria: list[tuple[Row, Criterion]]  # the worst first, at most MAX_ROWS
    left_out: int
    domains: list[Row]
    judged: int  # groups that the oracle was asked about
    groups: int


def health(data: RunData) -> Health:
    """... over all groups of a run in which they were scored. Without groups: empty tables."""
    groups = data.of(Group)
    states, _ = data.harness
    in_force = {c.id: c for task_id in states[-1].tasks for c in states[-1].rubric(task_id)}
    seed = data.spec.seed if data.spec else 0
    rows = breakdown(groups, "criterion", in_force, seed)
    return Health(
        criteria=[(row, in_force[row.key]) for row in rows[:MAX_ROWS]],
        left_out=len(rows[MAX_ROWS:]),
        domains=breakdown(groups, "domain", {}, seed),
        judged=sum(any(q is not None for q in group.quality) for group in groups),
        groups=len(groups),
    )
