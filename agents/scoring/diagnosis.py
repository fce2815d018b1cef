"""Failure classes of rollout pairs, and the signal rate. Pure numpy.

A pair of rollouts of one task either differs in score S or ties, and either differs in oracle quality
q or ties. S is the rubric reward, or what one criterion says; q is rubric-free. NaN in either makes a
pair `unknown`, and so does a difference in q below the `resolution` of the group, which is as much as
the oracle can tell apart (0: everything); no difference is a tie all the same. Shapes: M groups; G
rollouts of a group; P = G (G - 1) / 2 pairs of a group, in the order of `np.triu_indices(G, 1)`; N critic
rollouts; R bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ...memory.records import Collapse, PairClass
from .reward import Floats

EPS = 1e-9
CEILING = 1.0  # R_raw of a perfect response
FLOOR = 0.0  # R_raw of a response that earned nothing; penalties go below it
LEVEL = 0.9  # of an interval
REPLICATES = 200
CHUNK = 512  # groups that are resampled at a time: bounds the memory

CLASSES: tuple[PairClass, ...] = get_args(PairClass)
#: Pairs that carried, or should have carried, a gradient: the denominator of the signal rate.
SIGNAL_CLASSES: tuple[PairClass, ...] = CLASSES[:6]
COLLAPSES: tuple[Collapse, ...] = get_args(Collapse)

#: score_G, quality_G and, where the oracle is not exact, the resolution of a group.
Scored = tuple[Floats, Floats] | tuple[Floats, Floats, float]
Codes = NDArray[np.int8]  # places in CLASSES, or in COLLAPSES
Counts = NDArray[np.int64]


def _code(name: PairClass) -> np.int8:
    return np.int8(CLASSES.index(name))


_INFORMATIVE, _SPURIOUS, _INVERSION = _code("informative"), _code("spurious"), _code("inversion")
_NEUTRAL, _UNKNOWN = _code("neutral"), _code("unknown")
#: What a pair is that ties in S alone, by what its group does (a place in COLLAPSES).
_BLIND: Codes = np.array(
    [_code(n) for n in ("blind_low", "blind_mid", "blind_high", "blind_spread", "unknown")]
)


def collapse_codes(score_MG: Floats) -> Codes:
    """Whether the scores of each group tie, and where: places in `COLLAPSES`, shape (...).

    Unscored rollouts are left out; a group with fewer than two scored ones is "unscored".
    """
    low_M = np.fmin.reduce(score_MG, axis=-1, initial=np.nan)
    high_M = np.fmax.reduce(score_MG, axis=-1, initial=np.nan)
    tied_M = np.where(high_M >= CEILING - EPS, np.int8(2), np.int8(1))
    tied_M = np.where(low_M <= FLOOR + EPS, np.int8(0), tied_M)
    codes_M = np.where(high_M - low_M > EPS, np.int8(3), tied_M)
    few_M = (~np.isnan(score_MG)).sum(-1) < 2
    return np.where(few_M, np.int8(4), codes_M)


def collapse(score_G: Floats) -> Collapse:
    """Whether a group's scores tie, and where. Unscored rollouts are left out."""
    return COLLAPSES[int(collapse_codes(score_G))]


def pair_codes(score_MG: Floats, quality_MG: Floats, resolution_M: Floats | float = 0.0) -> Codes:
    """The failure class of every unordered pair of each group: places in `CLASSES`, shape (..., P)."""
    i, j = np.triu_indices(score_MG.shape[-1], 1)
    score_diff = score_MG[..., i] - score_MG[..., j]
    quality_diff = quality_MG[..., i] - quality_MG[..., j]
    q_ties = np.abs(quality_diff) <= EPS  # NaN compares as False
    codes = np.where(score_diff * quality_diff > 0, _INFORMATIVE, _INVERSION)
    codes = np.where(q_ties, _SPURIOUS, codes)
    ties = np.where(q_ties, _NEUTRAL, _BLIND[collapse_codes(score_MG)][..., None])
    codes = np.where(np.abs(score_diff) <= EPS, ties, codes)
    vague = ~q_ties & (np.abs(quality_diff) < np.asarray(resolution_M)[..., None])
    return np.where(vague | np.isnan(score_diff) | np.isnan(quality_diff), _UNKNOWN, codes)


def class_counts(score_MG: Floats, quality_MG: Floats, resolution_M: Floats | float = 0.0) -> Counts:
    """How many pairs of each group are of each class, shape (..., len(CLASSES))."""
    codes = pair_codes(score_MG, quality_MG, resolution_M)
    groups, n = codes.shape[:-1], len(CLASSES)
    codes_MP = codes.reshape(int(np.prod(groups)), codes.shape[-1])
    places = codes_MP + n * np.arange(len(codes_MP))[:, None]
    return np.bincount(places.ravel(), minlength=n * len(codes_MP)).reshape(*groups, n)


def pair_classes(score_G: Floats, quality_G: Floats, resolution: float = 0.0) -> dict[PairClass, int]:
    """Count the unordered pairs of one group by failure class."""
    return by_class(class_counts(score_G, quality_G, resolution))


def by_class(counts: Counts) -> dict[PairClass, int]:
    """Counts of shape (..., len(CLASSES)), summed over the leading axes, by the names of the classes."""
    total = counts.reshape(-1, len(CLASSES)).sum(0)
    return dict(zip(CLASSES, total.tolist(), strict=True))


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


def criterion_score(met: Floats, points: float) -> Floats:
    """S of one criterion: its verdicts, and for a penalty (points < 0) their opposite. NaN stays."""
    return met if points > 0 else 1.0 - met


def stacks(groups: Iterable[Scored]) -> Iterator[tuple[Floats, Floats, Floats]]:
    """All groups of one size G as (score_MG, quality_MG, resolution_M), for every size."""
    sizes: dict[int, list[tuple[Floats, Floats, float]]] = {}
    for score_G, quality_G, *rest in groups:
        sizes.setdefault(len(score_G), []).append((score_G, quality_G, rest[0] if rest else 0.0))
    for same in sizes.values():
        score_MG = np.stack([score for score, _, _ in same])
        quality_MG = np.stack([quality for _, quality, _ in same])
        yield score_MG, quality_MG, np.array([resolution for _, _, resolution in same])


# --- intervals and the critic's replicates -------------------------------------------------------


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
    score_MG: Floats,
    quality_MG: Floats,
    origin_MG: np.ndarray,
    resolution_M: Floats | float = 0.0,
) -> GroupSignals:
    """Signal counts of groups given as arrays of shape (..., G).

    `origin_MG` numbers the rollouts: two entries with one number are one rollout and its own
    bootstrap copy, and never make a pair.
    """
    i, j = np.triu_indices(score_MG.shape[-1], 1)
    codes = pair_codes(score_MG, quality_MG, resolution_M)
    apart = origin_MG[..., i] != origin_MG[..., j]
    return GroupSignals(
        (apart & (codes == _INFORMATIVE)).sum(-1).astype(float),
        (apart & (codes < len(SIGNAL_CLASSES))).sum(-1).astype(float),
        (apart & (codes != _UNKNOWN)).sum(-1).astype(float),
    )


def signal_interval(
    groups: Iterable[Scored],
    rng: np.random.Generator,
    level: float = LEVEL,
    replicates: int = REPLICATES,
) -> tuple[float, float] | None:
    """Two-sided bootstrap interval of the pooled signal rate of `groups`.

    Resamples rollouts within each group, never pairs (pairs of one rollout are not independent).
    None when no pair could have carried a signal.
    """
    top_R = np.zeros(replicates)
    bottom_R = np.zeros(replicates)
    for score_MG, quality_MG, resolution_M in stacks(groups):
        for first in range(0, len(score_MG), CHUNK):
            part = slice(first, first + CHUNK)
            codes_MP = pair_codes(score_MG[part], quality_MG[part], resolution_M[part])
            times_MRG = _resampled(len(codes_MP), score_MG.shape[1], replicates, rng)
            top_R += _drawn_pairs(codes_MP == _INFORMATIVE, times_MRG)
            bottom_R += _drawn_pairs(codes_MP < len(SIGNAL_CLASSES), times_MRG)
    defined_R = bottom_R > 0
    if not defined_R.any():
        return None
    low, high = np.quantile(top_R[defined_R] / bottom_R[defined_R], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(groups: int, size: int, replicates: int, rng: np.random.Generator) -> Floats:
    """How often each rollout of a group is drawn in each replicate, shape (M, R, G)."""
    drawn_MRG = rng.integers(size, size=(groups, replicates, size))
    first_MR1 = size * np.arange(groups * replicates).reshape(groups, replicates, 1)
    times = np.bincount((drawn_MRG + first_MR1).ravel(), minlength=drawn_MRG.size)
    return times.reshape(drawn_MRG.shape).astype(float)


def _drawn_pairs(pairs_MP: NDArray[np.bool_], times_MRG: Floats) -> Floats:
    """How many of `pairs_MP` the replicates hold, over all groups, shape (R,).

    Two rollouts drawn a and b times make a * b pairs; a rollout makes none with its own copies. The
    class of a pair stays that of the group it comes from: a resample that ties by chance does not make
    a spread group a collapsed one.
    """
    size = times_MRG.shape[-1]
    i, j = np.triu_indices(size, 1)
    pairs_MGG = np.zeros((len(pairs_MP), size, size))
    pairs_MGG[:, i, j] = pairs_MP
    counts: Floats = ((times_MRG @ pairs_MGG) * times_MRG).sum((0, 2))
    return counts


def agreement(score_N: Floats, quality_N: Floats, resolution: float = 0.0) -> float:
    """(concordant - discordant) / pairs whose quality differs, in [-1, 1]; 0 when no pair does.

    Kendall's tau with the score's ties counted as half right: what a guard compares before and after.
    """
    i, j = np.triu_indices(len(score_N), 1)
    score_diff, quality_diff = score_N[i] - score_N[j], quality_N[i] - quality_N[j]
    known = ~np.isnan(score_diff) & ~np.isnan(quality_diff) & (np.abs(quality_diff) > EPS)
    known &= np.abs(quality_diff) >= resolution
    if not known.any():
        return 0.0
    sign = np.where(np.abs(score_diff[known]) <= EPS, 0.0, np.sign(score_diff[known]))
    return float((sign * np.sign(quality_diff[known])).mean())


def as_floats(values: Iterable[float | bool | None]) -> Floats:
    """A list with None for unscored as floats with NaN."""
    return np.array(list(values), dtype=float)


def as_known(values: Floats) -> list[float | None]:
    """Floats with NaN for unknown as a list with None: what a record holds."""
    return [None if np.isnan(v) else float(v) for v in values]


def as_verdicts(met: Floats) -> list[bool | None]:
    """Verdicts 1, 0 and NaN (unscored) as True, False and None."""
    return [None if np.isnan(v) else bool(v) for v in met]
