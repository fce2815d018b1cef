"""Verdicts to rewards to advantages, as pure functions on arrays (DESIGN: section 3).

Shapes: G rollouts of one group, K criteria. Unscored is NaN everywhere, never 0.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MIN_STD = 1e-6


def group_rewards(points_K: Floats, met_GK: Floats, max_dropped: float) -> tuple[Floats, Bools]:
    """R_raw of each rollout (NaN: None), and which criteria were dropped for the whole group.

    `met_GK` holds 1 (met), 0 (not met) or NaN (unscored). A criterion unscored on any rollout is
    dropped for the group while the dropped |points| are at most `max_dropped` of the rubric's;
    beyond that, rollouts with an unscored criterion have no reward and the others keep the full
    rubric. With positive points in the rubric: sum(points met) / sum(positive points); else
    1 + sum(points met) / sum |points|.
    """
    unscored_K = np.isnan(met_GK).any(axis=0)
    size_K = np.abs(points_K)
    few = size_K[unscored_K].sum() <= max_dropped * size_K.sum() + 1e-12
    dropped_K: Bools = np.logical_and(unscored_K, few)
    kept_K = ~dropped_K
    gained_G = met_GK[:, kept_K] @ points_K[kept_K]  # NaN where a kept criterion is unscored
    if (points_K > 0).any():
        best = points_K[kept_K & (points_K > 0)].sum()
        if best == 0:
            return np.full(len(met_GK), np.nan), dropped_K
        return gained_G / best, dropped_K
    total = size_K[kept_K].sum()
    if total == 0:
        return np.full(len(met_GK), np.nan), dropped_K
    return 1 + gained_G / total, dropped_K


def group_advantages(
    rewards_G: Floats,
    guided_G: Bools,
    advantage: Literal["group_norm", "dr_grpo"],
    baseline: Literal["group", "stratum"],
    mismatch: Literal["positive_only", "ignore"],
) -> Floats:
    """Advantage of each rollout; 0 for unscored ones, which also leave mean and std.

    `group_norm`: (R - mean) / std, ddof = 1, and zeros where std < 1e-6; `dr_grpo`: R - mean.
    `stratum` takes mean and std of guided and plain rollouts apart. `positive_only` zeroes the
    negative advantages of guided rollouts: they were sampled under another prompt than the loss's.
    """
    out_G = np.zeros(len(rewards_G))
    strata = [guided_G, ~guided_G] if baseline == "stratum" else [np.ones_like(guided_G)]
    for stratum_G in strata:
        scored_G = stratum_G & ~np.isnan(rewards_G)
        if scored_G.sum() < 2:
            continue
        rewards = rewards_G[scored_G]
        std = rewards.std(ddof=1)
        if std < MIN_STD:
            continue
        centred = rewards - rewards.mean()
        out_G[scored_G] = centred / std if advantage == "group_norm" else centred
    if mismatch == "positive_only":
        out_G[guided_G] = np.maximum(out_G[guided_G], 0.0)
    return out_G
