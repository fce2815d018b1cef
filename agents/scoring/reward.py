"""Verdicts to rewards to advantages, as pure functions on arrays.

Shapes: G rollouts of one group, K criteria. Unscored is NaN everywhere, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MIN_STD = 1e-6


def group_rewards(
    points_K: Floats, met_GK: Floats, max_dropped: float, caps_K: Floats | None = None
) -> tuple[Floats, Bools]:
    """R_raw of each rollout (NaN: None), and which criteria were dropped for the whole group.

    `met_GK` holds 1 (met), 0 (not met) or NaN (unscored), shape (..., G, K): leading axes are
    separate groups. Returns shapes (..., G) and (..., K). A criterion unscored on any rollout is
    dropped for its group while the dropped |points| are at most `max_dropped` of the rubric's;
    beyond that, rollouts with an unscored criterion have no reward and the others keep the full
    rubric. With positive points in the rubric: sum(points met) / sum(positive points); else
    1 + sum(points met) / sum |points|. `caps_K` are gates: the most a response earns that fails the
    criterion (unmet; met, where points are negative), NaN for criteria that are no gate; a dropped
    criterion gates nobody.
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
    rewards_G = gained_G / scale if with_gains else 1 + gained_G / scale
    if caps_K is not None and not np.isnan(caps_K).all():
        failed_GK = np.where(points_K > 0, met_GK == 0, met_GK == 1) & kept_K[..., None, :]
        caps_GK = np.where(failed_GK & ~np.isnan(caps_K), caps_K, np.inf)
        rewards_G = np.minimum(rewards_G, caps_GK.min(axis=-1))  # no reward (NaN) stays none
    return rewards_G, dropped_K


def dataset_mean(rewards_N: Sequence[float]) -> float:
    """Score of a data set: the mean of unclipped R_raw, clipped to [0, 1].

    HealthBench (arXiv 2505.08775, section 3): examples may score below zero, the mean may not.
    """
    return float(np.clip(np.mean(rewards_N), 0.0, 1.0))


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
