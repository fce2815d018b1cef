"""Who meets whom, and Bradley-Terry scores: against brute force, and in simulated tournaments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scripted  # noqa: F401  (the profile of hypothesis)
from harnessrl.agents.scoring.diagnosis import EPS
from harnessrl.agents.scoring.ranking import PRIOR_SD, bradley_terry, schedule, settle, standing
from hypothesis import given
from hypothesis import strategies as st

OUTCOMES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


# --- who meets whom -------------------------------------------------------------------------------


@pytest.mark.parametrize("opponents", [2, 4, 6])
@pytest.mark.parametrize("others", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64])
@pytest.mark.parametrize("anchors", [1, 2, 3])
def test_a_schedule_is_connected_linear_and_fair(anchors: int, others: int, opponents: int) -> None:
    pairs = schedule(anchors, others, opponents)
    met = {tuple(sorted(pair)) for pair in pairs.tolist()}
    assert len(met) == len(pairs), "nobody meets twice"
    assert all(a != b for a, b in met)
    among = [pair for pair in met if min(pair) >= anchors]
    with_anchor = [pair for pair in met if min(pair) < anchors <= max(pair)]
    assert len(with_anchor) == others, "each meets one anchor"
    assert len({max(pair) for pair in with_anchor}) == others
    assert len(met) - len(among) - len(with_anchor) == anchors * (anchors - 1) // 2
    times = np.bincount(np.array(among, dtype=int).ravel(), minlength=anchors + others)[anchors:]
    expected = min(opponents, others - 1) if others else 0
    assert all(expected - 1 <= n <= expected for n in times.tolist()), times
    if others > opponents:
        assert set(times.tolist()) == {opponents}
        assert len(among) == others * opponents // 2


# --- the fit --------------------------------------------------------------------------------------


def log_posterior(theta: np.ndarray, pairs: np.ndarray, outcomes: np.ndarray) -> float:
    difference = theta[pairs[:, 0]] - theta[pairs[:, 1]]
    wins = outcomes * np.log(1 / (1 + np.exp(-difference)))
    losses = (1 - outcomes) * np.log(1 / (1 + np.exp(difference)))
    return float((wins + losses).sum() - (theta**2).sum() / (2 * PRIOR_SD**2))


@st.composite
def tournaments(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    """Players, pairs (some met often, some never) and outcomes."""
    n = draw(st.integers(2, 7))
    every = list(itertools.combinations(range(n), 2))
    pairs = draw(st.lists(st.sampled_from(every), min_size=1, max_size=20))
    outcomes = draw(st.lists(OUTCOMES, min_size=len(pairs), max_size=len(pairs)))
    return n, np.array(pairs), np.array(outcomes)


@given(tournaments(), st.integers(0, 2**32 - 1))
def test_no_other_scores_are_more_probable(
    tournament: tuple[int, np.ndarray, np.ndarray], seed: int
) -> None:
    n, pairs, outcomes = tournament
    fit = bradley_terry(n, pairs, outcomes)
    best = log_posterior(fit.theta_N, pairs, outcomes)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 0.1, 2.0):
        others = fit.theta_N + size * rng.standard_normal((20, n))
        assert best >= max(log_posterior(theta, pairs, outcomes) for theta in others)


def test_two_players_against_a_grid_of_scores() -> None:
    pairs, outcomes = np.array([[0, 1]] * 4), np.array([1, 1, 0.5, 0])
    fit = bradley_terry(2, pairs, outcomes)
    # By symmetry theta_0 = -theta_1 = t.
    grid = np.linspace(-3, 3, 600_001)
    chance = 1 / (1 + np.exp(-2 * grid))
    value = 2.5 * np.log(chance) + 1.5 * np.log(1 - chance) - grid**2 / PRIOR_SD**2
    assert fit.theta_N == pytest.approx([grid[value.argmax()], -grid[value.argmax()]], abs=2e-5)


@given(tournaments())
def test_the_covariance_is_the_inverse_curvature(
    tournament: tuple[int, np.ndarray, np.ndarray],
) -> None:
    n, pairs, outcomes = tournament
    fit = bradley_terry(n, pairs, outcomes)
    step = 1e-3 * np.eye(n)
    curvature = np.empty((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        corners = [
            a * b * log_posterior(fit.theta_N + a * step[i] + b * step[j], pairs, outcomes)
            for a, b in itertools.product((1, -1), repeat=2)
        ]
        curvature[i, j] = -sum(corners) / 4e-6
    assert fit.covariance_NN @ curvature == pytest.approx(np.eye(n), abs=1e-3)


@given(tournaments(), st.randoms(use_true_random=False))
def test_names_and_order_of_play_do_not_matter(tournament, random) -> None:  # type: ignore[no-untyped-def]
    n, pairs, outcomes = tournament
    names, order = list(range(n)), list(range(len(pairs)))
    random.shuffle(names)
    random.shuffle(order)
    fit = bradley_terry(n, pairs, outcomes)
    renamed = bradley_terry(n, np.array(names)[pairs][order], outcomes[order])
    assert renamed.theta_N[names] == pytest.approx(fit.theta_N, abs=1e-9)
    turned = bradley_terry(n, pairs[:, ::-1], 1 - outcomes)
    assert turned.theta_N == pytest.approx(fit.theta_N, abs=1e-9)


@given(tournaments())
def test_nothing_but_ties_makes_everybody_equal(tournament: tuple[int, np.ndarray, np.ndarray]) -> None:
    n, pairs, _ = tournament
    found = standing(n, 1, pairs, np.full(len(pairs), 0.5))
    assert set(found.q_N[~np.isnan(found.q_N)].tolist()) <= {0.5}
    everyone = np.array(list(itertools.combinations(range(n), 2)))
    assert standing(n, 1, everyone, np.full(len(everyone), 0.5)).q_N.tolist() == [0.5] * n


@given(tournaments())
def test_quality_is_between_zero_and_one_and_errors_are_real(
    tournament: tuple[int, np.ndarray, np.ndarray],
) -> None:
    n, pairs, outcomes = tournament
    found = standing(n, 1, pairs, outcomes)
    known = ~np.isnan(found.q_N)
    assert known[0] == (pairs == 0).any()
    assert (found.q_N[known] > 0).all() and (found.q_N[known] < 1).all()
    assert found.error_NN == pytest.approx(found.error_NN.T)
    assert np.diag(found.error_NN) == pytest.approx(np.zeros(n), abs=1e-7)


def test_only_what_is_tied_to_an_anchor_has_a_quality() -> None:
    pairs = np.array([[0, 1], [2, 3], [1, 4], [4, 5]])
    outcomes = np.array([1.0, 1.0, 0.0, np.nan])
    found = standing(6, 1, pairs, outcomes)
    assert np.isnan(found.q_N).tolist() == [False, False, True, True, False, True]
    assert found.q_N[0] == 0.5 > found.q_N[1]


def test_an_anchor_that_nobody_could_be_compared_with_is_left_out() -> None:
    pairs = np.array([[0, 1], [0, 2], [1, 2], [0, 3], [1, 4], [3, 4]])
    outcomes = np.array([1.0, np.nan, np.nan, 0.0, 0.0, 0.5])
    found = standing(5, 3, pairs, outcomes)
    kept = np.array([0, 1, 3, 4])
    without = standing(4, 2, np.array([[0, 1], [0, 2], [1, 3], [2, 3]]), np.array([1.0, 0.0, 0.0, 0.5]))
    assert np.isnan(found.q_N[2]) and found.q_N[kept] == pytest.approx(without.q_N)
    assert found.error_NN[np.ix_(kept, kept)] == pytest.approx(without.error_NN)
    assert np.isnan(standing(5, 3, pairs, np.full(6, np.nan)).q_N).all()
    assert standing(1, 1, pairs[:0], outcomes[:0]).q_N.tolist() == [0.5]


def test_quality_is_measured_from_the_anchors() -> None:
    """0.5 is their mean, whoever else plays."""
    pairs = np.array([[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]])
    found = standing(4, 3, pairs, np.array([0.5, 0.5, 0.5, 0.0, 0.0, 0.0]))
    assert found.q_N[:3] == pytest.approx([0.5] * 3) and found.q_N[3] > 0.75
    alone = standing(3, 3, pairs[:3], np.array([1.0, 1.0, 1.0]))
    logits = np.log(alone.q_N / (1 - alone.q_N))
    assert logits.sum() == pytest.approx(0.0, abs=1e-9) and (np.diff(alone.q_N) < 0).all()


# --- ties -----------------------------------------------------------------------------------------


def test_only_what_is_called_a_tie_is_equal() -> None:
    q = np.array([0.5, 0.5, 0.5, 0.6, 0.9, np.nan, 0.51])
    found = settle(q, 0.2, np.array([[0, 3], [4, 0], [5, 1], [2, 6]]))
    assert found[0] == found[3] == pytest.approx(0.55)
    assert found[2] == found[6] == pytest.approx(0.505)
    assert np.isnan(found[5]) and found[4] == 0.9, "a tie of what lies apart is not believed"
    assert found[1] == 0.5
    apart = settle(np.full(4, 0.5), 0.2, np.empty((0, 2), dtype=int))
    assert len(set(apart)) == 4 and apart == pytest.approx([0.5] * 4, abs=1e-6)
    assert np.diff(np.sort(apart)).min() > 10 * EPS


def test_ties_do_not_chain_beyond_the_resolution() -> None:
    q = np.array([0.1, 0.2, 0.3, 0.4])
    found = settle(q, 0.25, np.array([[0, 1], [1, 2], [2, 3]]))
    assert found == pytest.approx([0.2, 0.2, 0.2, 0.4])


@given(tournaments(), st.floats(0.0, 0.5), st.data())
def test_settling_moves_nobody_beyond_the_resolution(
    tournament: tuple[int, np.ndarray, np.ndarray], resolution: float, data: st.DataObject
) -> None:
    n, pairs, outcomes = tournament
    q = standing(n, 1, pairs, outcomes).q_N
    said = pairs[data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))]
    found = settle(q, resolution, said)
    known = ~np.isnan(q)
    assert (np.isnan(found) == ~known).all()
    assert (np.abs(found - q)[known] <= resolution + 1e-6).all()
    i, j = np.triu_indices(n, 1)
    told = (q[j] - q[i]) > 2 * resolution + 1e-5
    assert (found[j] - found[i])[told].min(initial=1.0) > 0, "no order that is told turns round"


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_equal_ones_are_called_equal_and_others_are_not(noise: float) -> None:
    """Three levels of quality; an answer is replaced by one at random with a chance of `noise`."""
    rng = np.random.default_rng(3)
    pairs = schedule(3, 8, 4)
    counts = dict.fromkeys(("tie", "equal", "false tie", "wrong", "different"), 0)
    for _ in range(60):
        true = rng.integers(3, size=11)
        right = (np.sign(true[pairs[:, 0]] - true[pairs[:, 1]]) + 1) / 2
        random = rng.choice([0, 0.5, 1], size=(2, len(pairs)))
        answers = np.where(rng.random((2, len(pairs))) < noise, random, right[None])
        found = standing(11, 3, pairs, answers.mean(0))
        i, j = np.triu_indices(8, 1)
        resolution = float(np.median(found.error_NN[3:, 3:][i, j]))
        q = settle(found.q_N, resolution, pairs[(answers == 0.5).all(0)])[3:]
        difference, equal = q[i] - q[j], true[3:][i] == true[3:][j]
        tie, told = difference == 0, np.abs(difference) >= resolution
        opposite = np.sign(difference) == -np.sign(true[3:][i] - true[3:][j])
        counts["tie"] += int((tie & equal).sum())
        counts["equal"] += int(equal.sum())
        counts["false tie"] += int((tie & ~equal).sum())
        counts["wrong"] += int((told & opposite & ~equal).sum())
        counts["different"] += int((~equal).sum())
    print(f"\nnoise {noise}: {counts}")
    assert counts["tie"] > 0.6 * counts["equal"]
    assert counts["false tie"] + counts["wrong"] <= 0.01 * counts["different"]


# --- tournaments ----------------------------------------------------------------------------------


def simulate(n: int, opponents: int, right: float, persistent: bool, repeats: int) -> tuple[float, float]:
    """Mean Spearman correlation with the true order, and the share of wrong orders among those told.

    An answer is right with a chance of `right`; a `persistent` mistake is made in both orders.
    """
    rng = np.random.default_rng(7)
    rank = lambda values: values.argsort().argsort()  # noqa: E731
    correlations, n_told, n_wrong = [], 0, 0
    pairs = schedule(3, n, opponents)
    for _ in range(repeats):
        true = rng.standard_normal(n + 3)
        better = (true[pairs[:, 0]] > true[pairs[:, 1]])[None] ^ (rng.random((2, len(pairs))) > right)
        outcomes = better[0].astype(float) if persistent else better.mean(0)
        found = standing(n + 3, 3, pairs, outcomes)
        quality, ours = found.q_N[3:], true[3:]
        correlations.append(np.corrcoef(rank(quality), rank(ours))[0, 1])
        i, j = np.triu_indices(n, 1)
        difference = quality[i] - quality[j]
        told = np.abs(difference) >= np.median(found.error_NN[3:, 3:][i, j])
        n_told += int(told.sum())
        n_wrong += int((np.sign(difference) != np.sign(ours[i] - ours[j]))[told].sum())
    return float(np.mean(correlations)), n_wrong / n_told


def test_a_perfect_oracle_finds_the_order() -> None:
    for opponents, least in ((2, 0.75), (4, 0.88), (6, 0.93)):
        correlation, wrong = simulate(32, opponents, 1.0, False, repeats=10)
        assert correlation > least and wrong < 0.03


@pytest.mark.parametrize("persistent", [False, True])
def test_how_accurate_a_noisy_oracle_is(persistent: bool) -> None:
    """80% right. More opponents help; what lies beyond the resolution is mostly right."""
    print(f"\nmistakes are {'persistent' if persistent else 'independent'}")
    found = {}
    for n, opponents in itertools.product((8, 32), (2, 4, 6)):
        found[n, opponents] = simulate(n, opponents, 0.8, persistent, repeats=60)
        print("n {} opponents {}: Spearman {:.2f}, {:.3f} of the told orders wrong".format(
            n, opponents, *found[n, opponents]
        ))  # fmt: skip
    for n in (8, 32):
        assert found[n, 2][0] < found[n, 4][0] < found[n, 6][0]
    assert min(found[n, 4][0] for n in (8, 32)) > (0.55 if persistent else 0.7)
    assert max(found[n, 4][1] for n in (8, 32)) < (0.16 if persistent else 0.08)
