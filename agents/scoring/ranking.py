"""From comparisons to scores: who meets whom, and Bradley-Terry scores with their errors. Pure numpy.

Players are numbered: first the A anchors, then the other responses. An outcome is the share of a
comparison that its first player wins: 1, 0, 0.5 for a tie, or between. P comparisons, N players.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .reward import Floats

#: Standard deviation of the prior of every score, in logits: weak, and enough to keep the score of a
#: response that won or lost everything finite.
PRIOR_SD = 2.0
TOLERANCE = 1e-12
#: Between scores that are equal although nobody says so; the diagnosis takes less than 1e-9 for a tie.
APART = 1e-7
MAX_STEPS = 200


def schedule(anchors: int, others: int, opponents: int) -> np.ndarray:
    """pairs_P2: who meets whom, linear in the number of players and always connected.

    All anchors meet one another. Every other response meets one anchor (in turn) and up to `opponents`
    others, as on a ring: those at the same few distances from it. The distances are spread, so that few
    meetings lie between any two.
    """
    pairs = [(a, b) for a in range(anchors) for b in range(a + 1, anchors)]
    if anchors:
        pairs += [(anchors + i, i % anchors) for i in range(others)]
    n_distances = min(opponents // 2, others // 2)
    distances: list[int] = []
    for n in range(n_distances):
        wanted = round((others / 2) ** (n / max(1, n_distances)))
        last = others // 2 - (n_distances - n - 1)  # leaves room for those that follow
        distances.append(min(max(wanted, distances[-1] + 1 if distances else 1), last))
    met = {tuple(sorted((i, (i + d) % others))) for d in distances for i in range(others)}
    pairs += [(anchors + i, anchors + j) for i, j in sorted(met)]
    return np.array(pairs, dtype=int).reshape(-1, 2)


@dataclass(frozen=True)
class Fit:
    """Scores in logits, and their posterior covariance."""

    theta_N: Floats
    covariance_NN: Floats


def bradley_terry(n: int, pairs_P2: np.ndarray, outcome_P: Floats, prior_sd: float = PRIOR_SD) -> Fit:
    """The scores under which the outcomes are most probable, given theta ~ N(0, prior_sd^2) each.

    P(first beats second) = sigmoid(theta_first - theta_second) (Bradley & Terry 1952, Biometrika 39,
    equation 1, in logits). A tie counts as half a win of each. Newton's method on a concave function;
    the covariance is the inverse of minus the Hessian there (Laplace's approximation).
    """
    first, second = pairs_P2[:, 0], pairs_P2[:, 1]
    theta = np.zeros(n)
    for _ in range(MAX_STEPS):
        chance_P = _sigmoid(theta[first] - theta[second])
        gradient = -theta / prior_sd**2
        np.add.at(gradient, first, outcome_P - chance_P)
        np.add.at(gradient, second, chance_P - outcome_P)
        precision = _precision(n, pairs_P2, chance_P, prior_sd)
        step = np.linalg.solve(precision, gradient)
        theta = theta + step / max(1.0, float(np.abs(step).max(initial=0.0)))  # never overshoots far
        if np.abs(step).max(initial=0.0) < TOLERANCE:
            break
    chance_P = _sigmoid(theta[first] - theta[second])
    covariance_NN = np.linalg.inv(_precision(n, pairs_P2, chance_P, prior_sd))
    return Fit(theta, np.asarray(covariance_NN, dtype=float))


def _precision(n: int, pairs_P2: np.ndarray, chance_P: Floats, prior_sd: float) -> Floats:
    """Minus the Hessian of the log posterior."""
    out = np.eye(n) / prior_sd**2
    weight_P = chance_P * (1.0 - chance_P)
    for sign, rows, columns in ((1, 0, 0), (1, 1, 1), (-1, 0, 1), (-1, 1, 0)):
        np.add.at(out, (pairs_P2[:, rows], pairs_P2[:, columns]), sign * weight_P)
    return out


@dataclass(frozen=True)
class Standing:
    """q_N: the chance to beat an anchor of average strength (0.5: as good as the anchors; NaN: no
    comparison leads to them), and the standard error of the difference of any two."""

    q_N: Floats
    error_NN: Floats


def standing(n: int, anchors: int, pairs_P2: np.ndarray, outcome_P: Floats) -> Standing:
    """Where N players stand beside the first `anchors` of them. Outcomes that are NaN are left out.

    An anchor that could be compared with nobody is left out too.
    """
    known = ~np.isnan(outcome_P)
    pairs_P2, outcome_P = pairs_P2[known], outcome_P[known]
    fit = bradley_terry(n, pairs_P2, outcome_P)
    tied_N = _tied_together(n, anchors, pairs_P2)
    centre_NN = np.eye(n)
    measure = np.flatnonzero(tied_N[:anchors])
    centre_NN[:, measure] -= 1.0 / max(1, len(measure))
    q_N = _sigmoid(centre_NN @ fit.theta_N)
    slope_NN = (q_N * (1.0 - q_N))[:, None] * centre_NN  # the delta method
    covariance_NN = slope_NN @ fit.covariance_NN @ slope_NN.T
    variance_N = np.diag(covariance_NN)
    square_NN = variance_N[:, None] + variance_N[None] - 2.0 * covariance_NN
    q_N[~tied_N] = np.nan
    return Standing(q_N, np.sqrt(np.maximum(square_NN, 0.0)))


def settle(q_N: Floats, resolution: float, said_P2: np.ndarray) -> Floats:
    """Qualities of which two are equal where the oracle says so, and nowhere else.

    `said_P2` are the pairs it calls ties. These, and whom ties connect to them, get their common mean,
    as long as all of them lie within the resolution. Others whose scores happen to be equal (answers that
    contradict each other do that) are set apart by a trifle: between them nothing is said.
    """
    part = {n: frozenset([n]) for n in range(len(q_N)) if not np.isnan(q_N[n])}
    told = [(a, b) for a, b in said_P2.tolist() if a in part and b in part]
    for a, b in sorted(told, key=lambda pair: (round(abs(q_N[pair[0]] - q_N[pair[1]]), 9), pair)):
        both = part[a] | part[b]
        if np.ptp(q_N[list(both)]) < resolution:
            part |= dict.fromkeys(both, both)
    out, last = q_N.copy(), -1.0
    means = {group: float(np.mean(q_N[sorted(group)])) for group in set(part.values())}
    for group in sorted(means, key=lambda group: (round(means[group], 9), min(group))):
        last = max(means[group], last + APART)
        out[list(group)] = last
    return out


def _tied_together(n: int, anchors: int, pairs_P2: np.ndarray) -> np.ndarray:
    """Who belongs to the players that comparisons tie together, of whom most are anchors.

    Nobody where nobody was compared, unless there is one player alone.
    """
    best = np.zeros(n, dtype=bool)
    for anchor in range(anchors):
        part = _tied_to(anchor, n, pairs_P2)
        if (part.sum() > 1 or n == 1) and part[:anchors].sum() > best[:anchors].sum():
            best = part
    return best


def _tied_to(player: int, n: int, pairs_P2: np.ndarray) -> np.ndarray:
    """Who a chain of comparisons ties to a player; the player too."""
    reached = np.zeros(n, dtype=bool)
    reached[player] = True
    while True:
        found = reached.copy()
        found[pairs_P2[reached[pairs_P2].any(axis=1)].ravel()] = True
        if (found == reached).all():
            return reached
        reached = found


def _sigmoid(x: Floats) -> Floats:
    q: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return q
