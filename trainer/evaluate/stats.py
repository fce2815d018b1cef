"""Means over tasks with bootstrap intervals, and two policies compared task by task. Pure numpy.

Tasks are what is resampled (Efron 1979): the samples of one task are no independent evidence. The draws
depend on the seed and the number of tasks only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...agents.scoring.reward import Floats
from ...specs.sampling import stream

DRAWS = 2000
LEVEL = 0.95
TIE = 1e-9
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks; `interval` is None below two tasks."""

    mean: float
    interval: Interval | None
    tasks: int


@dataclass(frozen=True)
class Paired:
    """The first policy's mean less the second's, over the tasks that both have a score on."""

    difference: float
    interval: Interval | None
    wins: int
    ties: int
    losses: int

    @property
    def tasks(self) -> int:
        """Tasks compared."""
        return self.wins + self.ties + self.losses


def estimate(
    values: Sequence[float], weights: Sequence[float], seed: int, clipped: bool = False
) -> Estimate | None:
    """The weighted mean of tasks' scores; None of no task. `clipped`: the mean is clipped to [0, 1]."""
    if not len(values):
        return None
    values_T, weights_T = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    means = _with_mean(values_T, weights_T, seed, clipped)
    return Estimate(float(means[-1]), _interval(means[:-1]) if len(values) > 1 else None, len(values))


def paired(
    first: Sequence[float],
    second: Sequence[float],
    weights: Sequence[float],
    seed: int,
    clipped: bool = False,
) -> Paired | None:
    """Two policies' scores on the same tasks, in the same order; None of no task.

    `clipped`: each policy's mean is clipped to [0, 1], of all tasks and of each draw of them.
    """
    if not len(first):
        return None
    first_T, second_T = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    weights_T = np.asarray(weights, dtype=float)
    gaps = _with_mean(first_T, weights_T, seed, clipped) - _with_mean(second_T, weights_T, seed, clipped)
    gap_T = first_T - second_T
    return Paired(
        float(gaps[-1]),
        _interval(gaps[:-1]) if len(gap_T) > 1 else None,
        wins=int((gap_T > TIE).sum()),
        ties=int((np.abs(gap_T) <= TIE).sum()),
        losses=int((gap_T < -TIE).sum()),
    )


def _with_mean(values_T: Floats, weights_T: Floats, seed: int, clipped: bool) -> Floats:
    """Means of bootstrap draws, and behind them that of all tasks, shape (DRAWS + 1,)."""
    times_BT = np.vstack([_times(seed, len(values_T)), np.ones(len(values_T))])
    means: Floats = (times_BT @ (values_T * weights_T)) / (times_BT @ weights_T)
    return np.clip(means, 0.0, 1.0) if clipped else means


@functools.lru_cache(maxsize=8)
def _times(seed: int, n: int) -> Floats:
    """How often each of `n` tasks is in each draw, shape (DRAWS, n)."""
    times_BT = stream(seed, "bootstrap", n).multinomial(n, np.full(n, 1.0 / n), size=DRAWS)
    return np.asarray(times_BT, dtype=float)


def _interval(means_B: Floats) -> Interval:
    low, high = np.quantile(means_B, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
