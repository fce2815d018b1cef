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

    `met_GK` holds 1 (met), 0 (not met) or NaN (unscored), shape (..., G, K): leading axes are
    separate groups. Returns shapes (..., G) and (..., K). A criterion unscored on any rollout is
    dropped for its group while the dropped |points| are at most `max_dropped` of the rubric's;
    beyond that, rollouts with an unscored criterion have no reward and the others keep the full
    rubric. With positive points in the rubric: sum(points met) / sum(positive points); else
    1 + sum(points met) / sum |points|.
    """
    size_K = np.abs(points_K)
    unscored_K = np.isnan(met_GK).any(axis=-2)
    few = unscored_K @ size_K <= max_dropped * size_K.sum() + 1e-12
    dropped_K: Bools = unscored_K & few[..., None]
    kept_K = ~dropped_K
    gained_G = np.where(kept_K[..., None, :], met_GK, 0.0) @ points_K  # NaN: a kept one is unscored
    with_gains = bool((points_K > 0).any())
    scale = kept_K @ (np.maximum(points_K, 0.0) if with_gains else size_K)
    scale = np.where(scale > 0, scale, np.nan)[..., None]  # nothing left to score by: no reward
    return (gained_G / scale if with_gains else 1 + gained_G / scale), dropped_K


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
