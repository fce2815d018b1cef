"""Intervals that cover, pairs that are compared as pairs, and overlap against a plain count."""

from __future__ import annotations

import numpy as np
import pytest
from harnessrl.trainer.evaluate.overlap import common_subsequence, rouge_l, tokens
from harnessrl.trainer.evaluate.stats import estimate, paired
from hypothesis import given
from hypothesis import strategies as st


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for n in range(300):
        found = estimate(rng.random(60).tolist(), [1.0] * 60, seed=n)
        assert found is not None and found.interval is not None
        covered += found.interval[0] <= 0.5 <= found.interval[1]
    assert 0.91 <= covered / 300 <= 0.98


def test_the_interval_is_that_of_the_normal_approximation_for_many_tasks() -> None:
    values = np.random.default_rng(1).random(2000)
    found = estimate(values.tolist(), [1.0] * 2000, seed=0)
    assert found is not None and found.interval is not None
    half = 1.96 * values.std(ddof=1) / np.sqrt(2000)
    assert found.interval == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 8)


def test_the_seed_decides() -> None:
    values = np.random.default_rng(0).random(30).tolist()
    one, two, other = (estimate(values, [1.0] * 30, seed=seed) for seed in (3, 3, 4))
    assert one == two != other


def test_instructions_count_one_by_one() -> None:
    found = estimate([1.0, 0.5], [1.0, 4.0], seed=0)
    assert found is not None and found.mean == pytest.approx(3 / 5)


@pytest.mark.parametrize(("values", "interval"), [([], None), ([0.4], None)])
def test_nothing_is_said_of_the_spread_of_one_task(values: list[float], interval: None) -> None:
    found = estimate(values, [1.0] * len(values), seed=0)
    assert found is None if not values else found is not None and found.interval is interval


def test_the_mean_of_unclipped_scores_is_clipped() -> None:
    found = estimate([-1.0, -0.5, 0.2], [1.0] * 3, seed=0, clipped=True)
    assert found is not None and found.mean == 0.0
    assert found.interval is not None and found.interval[0] == 0.0


def test_pairs_tell_more_than_two_intervals() -> None:
    """Tasks differ far more than the policies do: paired, a small difference still shows."""
    rng = np.random.default_rng(2)
    hard = rng.random(100)
    better = np.clip(hard + 0.02 + 0.01 * rng.standard_normal(100), 0, 1)
    found = paired(better.tolist(), hard.tolist(), [1.0] * 100, seed=0)
    assert found is not None and found.interval is not None
    assert found.interval[0] > 0
    alone = [estimate(values.tolist(), [1.0] * 100, seed=0) for values in (better, hard)]
    (low, _), (_, high) = (one.interval for one in alone if one is not None and one.interval)
    assert low < high
    assert found.wins + found.ties + found.losses == found.tasks == 100


words = st.lists(st.sampled_from("abcd"), max_size=12)


@given(words, words)
def test_the_longest_common_subsequence_is_the_longest(first: list[str], second: list[str]) -> None:
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    assert common_subsequence(first, second) == table[-1, -1]


def test_rouge_l_by_hand() -> None:
    assert rouge_l("the cat sat on the mat", "The cat, on a mat!") == pytest.approx(2 * 4 / (6 + 5))
    assert rouge_l("\u6211\u662f\u5b59\u609f\u7a7a", "\u6211\u662f\u609f\u7a7a") == pytest.approx(8 / 9)
    assert rouge_l("a", "") == 0.0 == rouge_l("", "")
    assert tokens("I'm 3 \u6211!") == ["i", "m", "3", "\u6211"]
