"""Quality of responses as the oracle's endpoint sees it: by comparisons, or beside a reference."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...memory.anchors import Anchors
from ...specs.schema import Oracle as OracleSpec
from ...specs.tasks import Task
from ..roles.client import Role
from .examiner import MOST_GRADE, Examiner, Graded, Opinion, Pair
from .ranking import schedule, settle, standing
from .reward import Floats
from .verdictcache import VerdictCache


@dataclass(frozen=True)
class Quality:
    """Of N responses to one task."""

    q_N: Floats
    """In [0, 1]; NaN: unknown."""
    resolution: float = 0.0
    """The standard error of the difference of two of them: a smaller difference says nothing, unless it
    is none at all, which is a tie."""
    causes: tuple[str, ...] = ()
    """Why something is unknown, one for each question without an answer."""


@dataclass(frozen=True)
class KnownOrder:
    """Two responses to a request of which one is better beyond doubt, and a reference beside them."""

    prompt: str
    reference: str
    better: str
    worse: str


class AskedOracle(Protocol):
    """An oracle behind an endpoint."""

    examiner: Examiner

    def quality(
        self, task: Task, responses: Sequence[str], plain: Sequence[bool], purpose: str
    ) -> Quality:
        """How good each response to `task` is. `plain`: which were written without guidance."""

    def orders(self, known: Sequence[KnownOrder], purpose: str) -> list[float | None]:
        """For each known order 1 if it is seen, 0 if its opposite is, between for a tie; None: no answer.

        Asked anew each time.
        """


def asked_oracle(
    role: Role, spec: OracleSpec, cache: VerdictCache | None = None, anchors: Path | None = None
) -> AskedOracle:
    """The oracle that `spec` names, behind `role`; `anchors` is the file that keeps them."""
    examiner = Examiner(role, spec, cache)
    if spec.kind == "reference":
        return Reference(examiner)
    return Pairwise(examiner, Anchors(anchors, spec.anchors))


def apart(oracle: AskedOracle, examiner: Examiner) -> AskedOracle:
    """The same oracle, with the same anchors, that asks through another examiner."""
    other = copy.copy(oracle)
    other.examiner = examiner
    return other


class Pairwise:
    """Responses compared with one another and with their task's anchors, each pair in both orders.

    What is asked depends on the texts alone, not on their order, so that the same responses are asked
    about, and answered from the cache, in the same way whenever they come.
    """

    def __init__(self, examiner: Examiner, anchors: Anchors) -> None:
        self.examiner = examiner
        self.anchors = anchors

    def quality(
        self, task: Task, responses: Sequence[str], plain: Sequence[bool], purpose: str
    ) -> Quality:
        """Bradley-Terry scores beside the anchors, the same ones in every call for a task: so quality
        can be compared over groups and steps. Equal texts have equal quality."""
        candidates = [text for text, is_plain in zip(responses, plain, strict=True) if is_plain]
        anchors = self.anchors.of(task.id, task.reference, candidates)
        if not anchors:
            cause = "no plain response was seen yet that could be an anchor"
            return Quality(np.full(len(responses), np.nan), causes=(cause,) * len(responses))
        others = sorted({*responses} - {*anchors}, key=_shuffled)
        players = [*anchors, *others]
        pairs_P2 = schedule(len(anchors), len(others), self.examiner.spec.opponents)
        compared = self._compare(
            [Pair(task.prompt, players[a], players[b]) for a, b in pairs_P2.tolist()], purpose
        )
        found = standing(len(players), len(anchors), pairs_P2, compared.outcome_P)
        number = {text: n for n, text in enumerate(players)}
        index_N = np.array([number[text] for text in responses], dtype=int)
        present = [n for n in sorted({*index_N.tolist()}) if not np.isnan(found.q_N[n])]
        i, j = np.triu_indices(len(present), 1)
        error_P = found.error_NN[np.ix_(present, present)][i, j]
        resolution = float(np.median(error_P)) if len(error_P) else 0.0
        q_N = settle(found.q_N, resolution, pairs_P2[compared.ties_P])
        return Quality(q_N[index_N], resolution, compared.causes)

    def orders(self, known: Sequence[KnownOrder], purpose: str) -> list[float | None]:
        """What the first, the better one, wins of each comparison."""
        pairs = [Pair(one.prompt, one.better, one.worse) for one in known]
        outcome_P = self._compare(pairs, purpose, anew=True).outcome_P
        return [None if np.isnan(outcome) else outcome for outcome in outcome_P.tolist()]

    def _compare(self, pairs: Sequence[Pair], purpose: str, anew: bool = False) -> _Compared:
        """Each pair in both orders."""
        swapped = [Pair(pair.prompt, pair.second, pair.first) for pair in pairs]
        opinions = self.examiner.ask([*pairs, *swapped], purpose, anew)
        one_P, other_P = _values(opinions[: len(pairs)]), _values(opinions[len(pairs) :])
        causes = tuple(opinion.cause for opinion in opinions if opinion.value is None)
        return _Compared((one_P + 2.0 - other_P) / 4.0, (one_P == 1.0) & (other_P == 1.0), causes)


@dataclass(frozen=True)
class _Compared:
    outcome_P: Floats  # what the first wins, the mean over both orders; NaN: one of them is open
    ties_P: NDArray[np.bool_]  # called a tie in both orders
    causes: tuple[str, ...]


class Reference:
    """Each response graded beside the task's reference; without one its quality is unknown."""

    def __init__(self, examiner: Examiner) -> None:
        self.examiner = examiner

    def quality(
        self, task: Task, responses: Sequence[str], plain: Sequence[bool], purpose: str
    ) -> Quality:
        """Grades as shares of the highest one. Equal grades are ties."""
        if task.reference is None:
            causes = ("the task has no reference",) * len(responses)
            return Quality(np.full(len(responses), np.nan), causes=causes)
        items = [Graded(task.prompt, task.reference, text) for text in responses]
        opinions = self.examiner.ask(items, purpose)
        causes = tuple(opinion.cause for opinion in opinions if opinion.value is None)
        return Quality(_values(opinions) / MOST_GRADE, causes=causes)

    def orders(self, known: Sequence[KnownOrder], purpose: str) -> list[float | None]:
        """Is the better one's grade above the worse one's?"""
        items = [Graded(o.prompt, o.reference, text) for o in known for text in (o.better, o.worse)]
        grades = _values(self.examiner.ask(items, purpose, anew=True))
        above = 0.5 + 0.5 * np.sign(grades[0::2] - grades[1::2])
        return [None if np.isnan(share) else share for share in above.tolist()]


def _values(opinions: Sequence[Opinion]) -> Floats:
    return np.array([np.nan if o.value is None else float(o.value) for o in opinions])


def _shuffled(text: str) -> bytes:
    """Sorting by this shuffles texts, always in the same way."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
