"""What the measured responses come to: by set, domain, axis and criterion, and two policies compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .measures import RUBRIC, RUBRIC_UNCLIPPED
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
    tasks: int
    """Tasks that there are, scored by this metric or not."""
    responses: int
    unscored: int
    causes: dict[str, int]
    """Why, the commonest first."""


@dataclass(frozen=True)
class Unscored:
    """Why responses to a set could not be scored by one kind of metric, in every mode and variant."""

    set_name: str
    kind: str
    responses: int
    """That it was to score, by any mode."""
    unscored: int
    causes: dict[str, int]
    """The commonest first; each response counts under one."""


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
            Sampling(name, len(some), len(replies), causes.total(), cut, dict(causes.most_common()))
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
    scores = [r.scores[metric] for a in members for r in of_mode(a, mode) if metric in r.scores]
    causes = Counter(score.cause for score in scores if score.value is None)
    known = list(task_scores(members, mode, metric).values())
    return Row(
        set_name,
        part,
        mode,
        metric,
        estimate([v for v, _ in known], [w for _, w in known], seed, clipped=metric == RUBRIC_UNCLIPPED),
        len(members),
        len(scores),
        causes.total(),
        dict(causes.most_common()),
    )


def unscored_rows(answered: Sequence[Answered]) -> list[Unscored]:
    """Every cause once: strict and loose, clipped and not, are unscored for the same one."""
    out = []
    for name, some in by(answered, lambda a: a.set_name).items():
        responses = [r for a in some for r in a.responses]
        for kind in dict.fromkeys(_kind(metric) for r in responses for metric in r.scores):
            scores = [
                next(score for metric, score in r.scores.items() if _kind(metric) == kind)
                for r in responses
                if any(_kind(metric) == kind for metric in r.scores)
            ]
            causes = Counter(score.cause for score in scores if score.value is None)
            if causes:
                told = dict(causes.most_common())
                out.append(Unscored(name, kind, len(scores), causes.total(), told))
    return out


def _kind(metric: str) -> str:
    """`prompts, strict` and `prompts, loose` are of one kind."""
    return metric.partition(",")[0]


def task_scores(members: Sequence[Answered], mode: Mode, metric: str) -> dict[str, tuple[float, float]]:
    """Task id -> (mean over its scored responses, weight); tasks without a scored one are not in it."""
    out = {}
    for a in members:
        scores = [r.scores[metric] for r in of_mode(a, mode) if metric in r.scores]
        known = [(s.value, s.weight) for s in scores if s.value is not None]
        if known:
            values, weights = np.array(known).T
            out[a.task.id] = (float(values @ weights / weights.sum()), float(weights.mean()))
    return out


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
                    ours_T, theirs_T = (task_scores(each, mode, metric) for each in (mine, theirs))
                    if metric == RUBRIC_UNCLIPPED and all(
                        scores == task_scores(each, mode, RUBRIC)
                        for scores, each in ((ours_T, mine), (theirs_T, theirs))
                    ):
                        continue  # no response of either is below zero
                    both = [t for t in ours_T if t in theirs_T]
                    found = paired(
                        [ours_T[t][0] for t in both],
                        [theirs_T[t][0] for t in both],
                        [ours_T[t][1] for t in both],
                        seed,
                        clipped=metric == RUBRIC_UNCLIPPED,
                    )
                    out.append(PairedRow(name, part, mode, metric, found))
    return out


def by(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by a key, in the order in which the keys come first."""
    out: dict[str, list[T]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return out


def of_mode(answered: Answered, mode: Mode) -> list[Response]:
    return [response for response in answered.responses if response.mode == mode]


def _metrics(answered: Sequence[Answered], mode: Mode) -> list[str]:
    return list(dict.fromkeys(m for a in answered for r in of_mode(a, mode) for m in r.scores))
