"""What is measured of a response: a rubric's score, the oracle's quality, exact match, overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...agents.scoring.checks import Verdict
from ...agents.scoring.scorer import Scorer, kind
from ...specs.ood import OodTask
from ...specs.tasks import Criterion, Task
from .choice import chosen
from .overlap import rouge_l

#: The score of a response is that of its rubric, clipped; of HealthBench's kind the mean is clipped.
RUBRIC, RUBRIC_UNCLIPPED = "rubric", "rubric, unclipped"

#: Tasks that the oracle compares responses of side by side: one task's pairs alone keep no server busy.
TASKS_AT_A_TIME = 16


@dataclass(frozen=True)
class Score:
    """A number in [0, 1] (`RUBRIC_UNCLIPPED`: at most 1), or None and why it is unscored."""

    value: float | None
    cause: str = ""
    weight: float = 1.0
    """What it counts for in the mean over tasks: instructions count one by one."""


@dataclass(frozen=True)
class Judged:
    """A verdict on one criterion; `met` None is unscored."""

    criterion: Criterion
    met: bool | None
    said: str = ""
    """Why: the judge's reason, or what kept it from a verdict."""


@dataclass(frozen=True)
class Measured:
    """What one measure says of one response."""

    scores: dict[str, Score]
    verdicts: tuple[Judged, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    """What the scores rest on, for people."""


@dataclass(frozen=True)
class Group:
    """A policy's responses to one task."""

    task: Task
    texts: tuple[str, ...]


class Measure(Protocol):
    """One way to measure responses."""

    def fits(self, task: Task) -> bool:
        """Does the task carry what this measures by?"""

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """For each response of each group, in order. What is asked of a model is asked all at once."""


class RubricMeasure:
    """The full rubric: no guidance, no dropout. `more` gives a task criteria that it does not carry."""

    def __init__(self, scorer: Scorer, more: Callable[[Task], tuple[Criterion, ...]]) -> None:
        self.scorer = scorer
        self.more = more

    def fits(self, task: Task) -> bool:
        """A rubric beside the set's own grades or instructions is these, made binary."""
        own = isinstance(task, OodTask) and (task.grades or task.instructions)
        return bool(self._rubric(task)) and not own

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """R_raw of each response; a criterion is dropped for all responses of a group, or for none."""
        questions = [(g.task, self._rubric(g.task), text) for g in groups for text in g.texts]
        found = iter(self.scorer.decided(questions, "evaluate"))
        self.scorer.take_causes("evaluate")  # each verdict has its own
        return [self._group(group, [next(found) for _ in group.texts]) for group in groups]

    def _rubric(self, task: Task) -> tuple[Criterion, ...]:
        return task.rubric or self.more(task)

    def _group(self, group: Group, found: Sequence[Sequence[Verdict]]) -> list[Measured]:
        rubric = self._rubric(group.task)
        if not found:
            return []
        met_GK = np.array([[np.nan if one.met is None else one.met for one in row] for row in found])
        rewards_G = self.scorer.rewards(rubric, met_GK.astype(float))
        causes = Counter(kind(one.cause) for row in found for one in row if one.met is None)
        cause = next((cause for cause, _ in causes.most_common(1)), "")
        out = []
        for row, reward in zip(found, rewards_G.tolist(), strict=True):
            verdicts = tuple(
                Judged(criterion, one.met, one.reason or one.cause)
                for criterion, one in zip(rubric, row, strict=True)
            )
            if np.isnan(reward):
                score = unclipped = Score(None, f"too few verdicts; the commonest cause: {cause}")
            else:
                score, unclipped = Score(min(1.0, max(0.0, reward))), Score(reward)
            out.append(Measured({RUBRIC: score, RUBRIC_UNCLIPPED: unclipped}, verdicts))
        return out


class QualityMeasure:
    """What the oracle says, which sees no rubric."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def fits(self, task: Task) -> bool:
        """Is it a task of the run's own, and is there an oracle that could say something of it?"""
        embedded = self.scorer.oracle.kind == "embedded" and task.quality is not None
        return not isinstance(task, OodTask) and (self.scorer.asked is not None or embedded)

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """Quality in [0, 1]. A task's questions are asked at once, and those of several tasks."""
        pool = ThreadPoolExecutor(TASKS_AT_A_TIME if self.scorer.asked else 1)
        try:
            return list(pool.map(self._group, groups))
        finally:  # one who stops does not wait for the oracle: closing its role ends what is open
            pool.shutdown(wait=False, cancel_futures=True)

    def _group(self, group: Group) -> list[Measured]:
        found = self.scorer.quality(group.task, group.texts, "evaluate")
        cause = kind(found.causes[0]) if found.causes else "the oracle does not say"
        return [
            Measured({"oracle quality": Score(None, cause) if np.isnan(q) else Score(q)})
            for q in found.q_N.tolist()
        ]


class ChoiceMeasure:
    """Exact match of the answer that a response gives. None given is not right, and told apart."""

    def fits(self, task: Task) -> bool:
        """Is there a key?"""
        return isinstance(task, OodTask) and task.answer is not None

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """1 or 0, and whether an answer was given at all."""
        return [[_choice(group.task, text) for text in group.texts] for group in groups]


def _choice(task: Task, text: str) -> Measured:
    assert isinstance(task, OodTask) and task.answer is not None
    given = chosen(text, task.answer.choices)
    scores = {
        "exact match": Score(float(given == task.answer.correct)),
        "answered": Score(float(given is not None)),
    }
    return Measured(scores, detail={"given": given, "correct": task.answer.correct})


class OverlapMeasure:
    """Rouge-L with the reference that a response is closest to."""

    def fits(self, task: Task) -> bool:
        """Are there known good responses to be close to?"""
        return isinstance(task, OodTask) and bool(task.references)

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """F1 of the longest common subsequence."""
        return [[_overlap(group.task, text) for text in group.texts] for group in groups]


def _overlap(task: Task, text: str) -> Measured:
    assert isinstance(task, OodTask)
    return Measured({"rouge-l": Score(max(rouge_l(one, text) for one in task.references))})
