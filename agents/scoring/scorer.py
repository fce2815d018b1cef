"""Verdicts and quality for the responses of one task: criteria go to checks, quality to the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...specs.schema import Oracle
from ...specs.tasks import Criterion, Task
from ..usage import Purpose, Usage
from .checks import run_check
from .oracle import measure_quality
from .reward import Floats, group_rewards


class Scorer:
    """Scores responses; counts every verdict by purpose."""

    def __init__(self, oracle: Oracle, usage: Usage, max_dropped: float) -> None:
        self.oracle = oracle
        self.usage = usage
        self.max_dropped = max_dropped

    def verdicts(
        self, task: Task, rubric: Sequence[Criterion], responses: Sequence[str], purpose: Purpose
    ) -> Floats:
        """met_GK: 1 met, 0 not met, NaN unscored, for each response and criterion."""
        self.usage.judge_calls[purpose] += len(responses) * len(rubric)
        met_GK = np.full((len(responses), len(rubric)), np.nan)
        for k, criterion in enumerate(rubric):
            for i, response in enumerate(responses):
                met_GK[i, k] = _verdict(criterion, task.prompt, response)
        return met_GK

    def rewards(self, rubric: Sequence[Criterion], met_GK: Floats) -> Floats:
        """R_raw of each response (NaN: none) under a rubric."""
        points_K = np.array([criterion.points for criterion in rubric])
        return group_rewards(points_K, met_GK, self.max_dropped)[0]

    def quality(self, task: Task, responses: Sequence[str]) -> Floats:
        """q of each response, in [0, 1]; NaN without an oracle or without a `quality` to go by."""
        if self.oracle.kind == "none" or task.quality is None:
            return np.full(len(responses), np.nan)
        return np.array([measure_quality(task.quality, task.prompt, r).total for r in responses])


def _verdict(criterion: Criterion, prompt: str, response: str) -> float:
    if criterion.check is None:
        return np.nan  # needs a judge role; the loader refuses such tasks while there is none
    met = run_check(criterion.check, prompt, response).met
    return np.nan if met is None else float(met)
