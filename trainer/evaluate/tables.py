"""What the measured responses come to: by set, domain, axis and criterion, and two policies compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .measures import RUBRIC, RUBRIC_UNCLIPPED, Judged
from .policies import Reply
from .run import Answered, Mode, Response
from .stats import Estimate, Paired, estimate, paired

T = TypeVar("T")
MODES: tuple[Mode, ...] = ("greedy", "sampled")


@dataclass(frozen=True)
class Row:
    """One metric of one policy on one set, or a part of it."""

    set_name: str
    part: str
    """The domain, or the axis; empty: the whole set."""
    mode: Mode
    metric: str
    estimate: Estimate | None
    """None: nothing could be scored."""
    responses: int
    unscored: int
    causes: dict[str, int]
    """Why, the commonest first."""


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
class Sampling:
    """How sampling a set went."""

    set_name: str
    tasks: int
    responses: int
    missing: int
    """Responses that the policy did not give: they are in no table."""
    cut: int
    """Responses that were cut at the token limit."""
    causes: dict[str, int]


@dataclass(frozen=True)
class PairedRow:
    """The first policy beside the second by one metric."""

    set_name: str
    part: str
    mode: Mode
    metric: str
    paired: Paired | None
    """None: no task has a score of both."""


def sampling(answered: Sequence[Answered]) -> list[Sampling]:
    """A line a set."""
    out = []
    for name, some in by(answered, lambda a: a.set_name).items():
        replies = [response.reply for a in some for response in a.responses]
        causes = Counter(reply for reply in replies if isinstance(reply, str))
        cut = sum(isinstance(reply, Reply) and not reply.finished for reply in replies)
        out.append(
            Sampling(name, len(some), len(replies), causes.total(), cut, dict(causes.most_common(5)))
        )
    return out


def rows(answered: Sequence[Answered], seed: int) -> list[Row]:
    """Every metric by set and mode; then the same by domain, where a set has several."""
    out = []
    for name, some in by(answered, lambda a: a.set_name).items():
        parts: dict[str, Sequence[Answered]] = {"": some}
        domains = by(some, lambda a: a.task.domain)
        if len(domains) > 1:
            parts |= domains
        for part, members in parts.items():
            for mode in MODES:
                found = [_row(name, part, mode, m, members, seed) for m in _metrics(members, mode)]
                out += [row for row in found if not _says_nothing_new(row, found)]
    return out


def _says_nothing_new(row: Row, beside: Sequence[Row]) -> bool:
    """Where no response scores below zero, clipping each or their mean is the same."""
    clipped = next((other for other in beside if other.metric == RUBRIC), row)
    return row.metric == RUBRIC_UNCLIPPED and row.estimate == clipped.estimate


def _row(
    set_name: str, part: str, mode: Mode, metric: str, members: Sequence[Answered], seed: int
) -> Row:
    scores = [r.scores[metric] for a in members for r in _of(a, mode) if metric in r.scores]
    causes = Counter(score.cause for score in scores if score.value is None)
    known = list(task_scores(members, mode, metric).values())
    return Row(
        set_name,
        part,
        mode,
        metric,
        estimate([v for v, _ in known], [w for _, w in known], seed, clipped=metric == RUBRIC_UNCLIPPED),
        len(scores),
        causes.total(),
        dict(causes.most_common(5)),
    )


def task_scores(members: Sequence[Answered], mode: Mode, metric: str) -> dict[str, tuple[float, float]]:
    """Task id -> (mean over its scored responses, weight); tasks without a scored one are not in it."""
    out = {}
    for a in members:
        scores = [r.scores[metric] for r in _of(a, mode) if metric in r.scores]
        known = [(s.value, s.weight) for s in scores if s.value is not None]
        if known:
            values, weights = np.array(known).T
            out[a.task.id] = (float(values @ weights / weights.sum()), float(weights.mean()))
    return out


def axis_rows(answered: Sequence[Answered], seed: int) -> list[Row]:
    """Share of criteria that were earned, by the axis that the source names, over all responses."""
    out = []
    for name, some in by(answered, lambda a: a.set_name).items():
        for mode in MODES:
            shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
            seen: Counter[str] = Counter()
            unscored: Counter[str] = Counter()
            for a in some:
                verdicts = [v for r in _of(a, mode) for v in r.verdicts]
                for axis, mine in by(verdicts, axis_of).items():
                    good = [earned(v) for v in mine]
                    known = [g for g in good if g is not None]
                    seen[axis] += len(good)
                    unscored[axis] += len(good) - len(known)
                    if known:
                        shares[axis].append((float(np.mean(known)), float(len(known))))
            for axis in sorted(seen, key=lambda one: (one == "", one)):
                values = shares[axis]
                found = estimate([v for v, _ in values], [w for _, w in values], seed)
                out.append(
                    Row(
                        name,
                        axis or "no axis",
                        mode,
                        "criteria earned",
                        found,
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


def compare(first: Sequence[Answered], second: Sequence[Answered], seed: int) -> list[PairedRow]:
    """Every metric of two policies on the same tasks."""
    out = []
    others = by(second, lambda a: a.set_name)
    for name, some in by(first, lambda a: a.set_name).items():
        theirs = others.get(name, [])
        domains = sorted({a.task.domain for a in some})
        for part in ["", *(domains if len(domains) > 1 else [])]:
            mine = [a for a in some if part in ("", a.task.domain)]
            for mode in MODES:
                for metric in _metrics(mine, mode):
                    if metric == RUBRIC_UNCLIPPED:
                        continue  # its mean is clipped, and a difference of clipped means is no mean
                    ours_T, theirs_T = (task_scores(each, mode, metric) for each in (mine, theirs))
                    both = [t for t in ours_T if t in theirs_T]
                    found = paired(
                        [ours_T[t][0] for t in both],
                        [theirs_T[t][0] for t in both],
                        [ours_T[t][1] for t in both],
                        seed,
                    )
                    out.append(PairedRow(name, part, mode, metric, found))
    return out


def earned(verdict: Judged) -> float | None:
    """1 for a criterion that is met, or a penalty that is not; None unscored."""
    if verdict.met is None:
        return None
    return float(verdict.met == (verdict.criterion.points > 0))


def axis_of(verdict: Judged) -> str:
    """The axis that a criterion's tags name, or an empty string."""
    tags = verdict.criterion.tags or ()
    return next((tag.removeprefix("axis:") for tag in tags if tag.startswith("axis:")), "")


def by(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by a key, in the order in which the keys come first."""
    out: dict[str, list[T]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return out


def _of(answered: Answered, mode: Mode) -> list[Response]:
    return [response for response in answered.responses if response.mode == mode]


def _metrics(answered: Sequence[Answered], mode: Mode) -> list[str]:
    return list(dict.fromkeys(m for a in answered for r in _of(a, mode) for m in r.scores))
