"""Verdicts and quality of responses: criteria go to checks or to the judge, quality to the oracle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...specs.schema import Oracle
from ...specs.tasks import Criterion, Task
from ..usage import Purpose, Usage
from .checks import Verdict, run_check
from .extract import Extract, Part, check_extracts
from .judge import Item, Judge
from .oracle import measure_quality
from .quality import AskedOracle, Quality
from .reward import Floats, group_rewards

_NO_JUDGE = Verdict(None, "needs a judge role, and none is configured")


class Scorer:
    """Scores responses; counts every verdict by purpose, and why verdicts are missing.

    Several threads may use it.
    """

    def __init__(
        self,
        oracle: Oracle,
        usage: Usage,
        max_dropped: float,
        judge: Judge | None = None,
        asked: AskedOracle | None = None,
    ) -> None:
        self.oracle = oracle
        self.asked = asked  # the oracle behind an endpoint, where the spec says so
        self.usage = usage
        self.max_dropped = max_dropped
        self.judge = judge
        self.causes: dict[str, Counter[str]] = {}  # by purpose, since they were last taken
        self.oracle_causes: dict[str, Counter[str]] = {}  # likewise
        self._counting = threading.Lock()

    def take_causes(self, purpose: str) -> dict[str, int]:
        """Why verdicts for a purpose were unscored since the last call, the commonest kind first."""
        with self._counting:
            return dict(self.causes.pop(purpose, Counter()).most_common())

    def take_oracle_causes(self, purpose: str) -> dict[str, int]:
        """Why the oracle could not say, likewise."""
        with self._counting:
            return dict(self.oracle_causes.pop(purpose, Counter()).most_common())

    def verdicts(
        self, task: Task, rubric: Sequence[Criterion], responses: Sequence[str], purpose: Purpose
    ) -> Floats:
        """met_GK: 1 met, 0 not met, NaN unscored, for each response and criterion."""
        if not responses:
            return np.empty((0, len(rubric)))
        return np.stack(self.verdicts_of([(task, rubric, text) for text in responses], purpose))

    def verdicts_of(
        self, questions: Sequence[tuple[Task, Sequence[Criterion], str]], purpose: str
    ) -> list[Floats]:
        """met_K of each (task, rubric, response): `decided` in numbers."""
        return [
            np.array([np.nan if one.met is None else float(one.met) for one in row])
            for row in self.decided(questions, purpose)
        ]

    def decided(
        self, questions: Sequence[tuple[Task, Sequence[Criterion], str]], purpose: str
    ) -> list[list[Verdict]]:
        """A verdict for each criterion of each (task, rubric, response).

        What a judge has to decide is asked all at once, and then what it has to extract.
        """
        found: list[list[Verdict]] = []
        items: list[Item] = []
        asked: list[tuple[int, list[int]]] = []  # question, and which of its criteria are judged
        extracts: list[Extract] = []
        places: list[tuple[int, int]] = []  # question and criterion of each
        for i, (task, rubric, response) in enumerate(questions):
            row = [_NO_JUDGE] * len(rubric)
            for k, criterion in enumerate(rubric):
                if criterion.check is None:
                    continue
                if criterion.extract is None:
                    row[k] = run_check(criterion.check, task.prompt, response)
                else:
                    part = Part(task.prompt, response, criterion.extract)
                    extracts.append(Extract(part, criterion.check))
                    places.append((i, k))
            found.append(row)
            if judged := [k for k, criterion in enumerate(rubric) if criterion.check is None]:
                items.append(Item(task.prompt, response, tuple(rubric[k].text for k in judged)))
                asked.append((i, judged))
        calls = sum(len(rubric) for _, rubric, _ in questions)
        with self._counting:
            self.usage.judge_calls[purpose] = self.usage.judge_calls.get(purpose, 0) + calls
        if self.judge is not None:
            for (i, judged), said in zip(
                asked, self.judge.decide(items, purpose) if items else [], strict=True
            ):
                for k, verdict in zip(judged, said, strict=True):
                    found[i][k] = verdict
            extracted = check_extracts(self.judge, extracts, purpose)
            for (i, k), verdict in zip(places, extracted, strict=True):
                found[i][k] = verdict
        causes = [kind(one.cause) for row in found for one in row if one.met is None]
        if causes:
            with self._counting:
                self.causes.setdefault(purpose, Counter()).update(causes)
        return found

    def rewards(self, rubric: Sequence[Criterion], met_GK: Floats) -> Floats:
        """R_raw of each response (NaN: none) under a rubric."""
        points_K = np.array([criterion.points for criterion in rubric])
        gates = [np.nan if criterion.gate is None else criterion.gate for criterion in rubric]
        return group_rewards(points_K, met_GK, self.max_dropped, np.array(gates))[0]

    def quality(
        self,
        task: Task,
        responses: Sequence[str],
        purpose: Purpose = "train",
        plain: Sequence[bool] | None = None,
    ) -> Quality:
        """q of each response, in [0, 1]; NaN where the oracle cannot say, or there is none.

        `plain` says which responses were written without guidance; default: all.
        """
        if self.asked is not None and responses:
            unguided = [True] * len(responses) if plain is None else plain
            found = self.asked.quality(task, responses, unguided, purpose)
            with self._counting:
                self.oracle_causes.setdefault(purpose, Counter()).update(map(kind, found.causes))
            return found
        if self.oracle.kind != "embedded" or task.quality is None:
            return Quality(np.full(len(responses), np.nan))
        measured = [measure_quality(task.quality, task.prompt, r).total for r in responses]
        return Quality(np.array(measured))


def kind(cause: str) -> str:
    """A cause without what differs from case to case: `judge: HTTP 500`, not a server's every message."""
    parts = cause.split(": ")
    return ": ".join(parts[: 2 if " " not in parts[0] else 1])
