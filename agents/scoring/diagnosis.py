"""Failure classes of rollout pairs, and the signal rate. Pure numpy.

A pair of rollouts of one task either differs in score S or ties, and either differs in oracle quality
q or ties. S is the rubric reward; q is rubric-free. NaN in either makes a pair `unknown`.
Shapes: G rollouts of a group; N critic rollouts; M drawn groups; R bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from ...memory.records import Collapse, PairClass
from .reward import Floats

EPS = 1e-9
CEILING = 1.0  # R_raw of a perfect response
FLOOR = 0.0  # R_raw of a response that earned nothing; penalties go below it

CLASSES: tuple[PairClass, ...] = get_args(PairClass)
#: Pairs that carried, or should have carried, a gradient: the denominator of the signal rate.
SIGNAL_CLASSES: tuple[PairClass, ...] = CLASSES[:6]


def collapse(score_G: Floats) -> Collapse:
    """Whether a group's scores tie, and where. Unscored rollouts are left out."""
    scored = score_G[~np.isnan(score_G)]
    if len(scored) < 2:
        return "unscored"
    if np.ptp(scored) > EPS:
        return "spread"
    if scored[0] <= FLOOR + EPS:
        return "collapsed-low"
    return "collapsed-high" if scored[0] >= CEILING - EPS else "collapsed-mid"


def pair_classes(score_G: Floats, quality_G: Floats) -> dict[PairClass, int]:
    """Count the unordered pairs of one group by failure class."""
    i, j = np.triu_indices(len(score_G), 1)
    score_diff = score_G[i] - score_G[j]
    quality_diff = quality_G[i] - quality_G[j]
    known = ~np.isnan(score_diff) & ~np.isnan(quality_diff)
    score_diff, quality_diff = score_diff[known], quality_diff[known]
    s_ties, q_ties = np.abs(score_diff) <= EPS, np.abs(quality_diff) <= EPS
    same_order = score_diff * quality_diff > 0
    blind: dict[Collapse, PairClass] = {
        "collapsed-low": "blind_low",
        "collapsed-mid": "blind_mid",
        "collapsed-high": "blind_high",
        "spread": "blind_spread",
    }
    counts: dict[PairClass, int] = dict.fromkeys(CLASSES, 0)
    counts["informative"] = int((~s_ties & ~q_ties & same_order).sum())
    counts["inversion"] = int((~s_ties & ~q_ties & ~same_order).sum())
    counts["spurious"] = int((~s_ties & q_ties).sum())
    counts["neutral"] = int((s_ties & q_ties).sum())
    counts["unknown"] = int((~known).sum())
    if where := blind.get(collapse(score_G)):
        counts[where] = int((s_ties & ~q_ties).sum())
    return counts


def pool(counts: Iterable[Mapping[PairClass, int]]) -> dict[PairClass, int]:
    """Sum pair counts over groups."""
    total: dict[PairClass, int] = dict.fromkeys(CLASSES, 0)
    for one in counts:
        for name, n in one.items():
            total[name] += n
    return total


def signal_rate(counts: Mapping[PairClass, int]) -> float | None:
    """informative / (informative + spurious + inversion + blind in collapsed groups); None if 0 / 0."""
    denominator = sum(counts.get(name, 0) for name in SIGNAL_CLASSES)
    return counts.get("informative", 0) / denominator if denominator else None


# --- many groups at once: intervals and the critic's replicates ----------------------------------


@dataclass(frozen=True)
class GroupSignals:
    """Signal of many groups at once: arrays of one shape, one entry a group."""

    informative: Floats
    denominator: Floats  # pairs in the signal rate's denominator
    pairs: Floats  # pairs with known S and q

    def rate(self, axis: int = -1) -> Floats:
        """Pooled signal rate over `axis`; 0 where no pair could have carried a signal."""
        bottom = self.denominator.sum(axis)
        top = self.informative.sum(axis)
        return np.asarray(np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))


def group_signals(
    score_MG: Floats, quality_MG: Floats, origin_MG: np.ndarray, spread: bool | None = None
) -> GroupSignals:
    """Signal counts of groups given as arrays of shape (..., G).

    `origin_MG` numbers the rollouts: two entries with one number are one rollout and its own
    bootstrap copy, and never make a pair. `spread` says whether the group that was resampled
    spreads; a resample that ties by chance does not make a spread group a collapsed one.
    """
    i, j = np.triu_indices(score_MG.shape[-1], 1)
    score_diff = score_MG[..., i] - score_MG[..., j]
    quality_diff = quality_MG[..., i] - quality_MG[..., j]
    apart = origin_MG[..., i] != origin_MG[..., j]
    known = apart & ~np.isnan(score_diff) & ~np.isnan(quality_diff)
    s_differs = known & (np.abs(score_diff) > EPS)
    q_differs = known & (np.abs(quality_diff) > EPS)
    informative = (s_differs & q_differs & (score_diff * quality_diff > 0)).sum(-1)
    seen_apart = (apart & (np.abs(score_diff) > EPS)).any(-1)  # NaN compares as False
    spreads = seen_apart if spread is None else np.asarray(spread)
    blind = np.where(spreads, 0, q_differs.sum(-1) - (s_differs & q_differs).sum(-1))
    return GroupSignals(
        informative.astype(float),
        (s_differs.sum(-1) + blind).astype(float),
        known.sum(-1).astype(float),
    )


def signal_interval(
    groups: Iterable[tuple[Floats, Floats]],
    rng: np.random.Generator,
    level: float = 0.9,
    replicates: int = 200,
) -> tuple[float, float] | None:
    """Two-sided bootstrap interval of the pooled signal rate of `groups` of (score_G, quality_G).

    Resamples rollouts within each group, never pairs (pairs of one rollout are not independent).
    None when no pair could have carried a signal.
    """
    top_R = np.zeros(replicates)
    bottom_R = np.zeros(replicates)
    for score_G, quality_G in groups:
        origin_RG = rng.integers(len(score_G), size=(replicates, len(score_G)))
        spread = collapse(score_G) == "spread"
        signals = group_signals(score_G[origin_RG], quality_G[origin_RG], origin_RG, spread)
        top_R += signals.informative
        bottom_R += signals.denominator
    defined_R = bottom_R > 0
    if not defined_R.any():
        return None
    low, high = np.quantile(top_R[defined_R] / bottom_R[defined_R], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def agreement(score_N: Floats, quality_N: Floats) -> float:
    """(concordant - discordant) / pairs whose quality differs, in [-1, 1]; 0 when no pair does.

    Kendall's tau with the score's ties counted as half right: what a guard compares before and after.
    """
    i, j = np.triu_indices(len(score_N), 1)
    score_diff, quality_diff = score_N[i] - score_N[j], quality_N[i] - quality_N[j]
    known = ~np.isnan(score_diff) & ~np.isnan(quality_diff) & (np.abs(quality_diff) > EPS)
    if not known.any():
        return 0.0
    sign = np.where(np.abs(score_diff[known]) <= EPS, 0.0, np.sign(score_diff[known]))
    return float((sign * np.sign(quality_diff[known])).mean())


def as_floats(values: Iterable[float | bool | None]) -> Floats:
    """A list with None for unscored as floats with NaN."""
    return np.array([np.nan if v is None else float(v) for v in values])


def as_known(values: Floats) -> list[float | None]:
    """Floats with NaN for unknown as a list with None: what a record holds."""
    return [None if np.isnan(v) else float(v) for v in values]


def as_verdicts(met: Floats) -> list[bool | None]:
    """Verdicts 1, 0 and NaN (unscored) as True, False and None."""
    return [None if np.isnan(v) else bool(v) for v in met]
