"""Failure classes of pairs, the signal rate with its interval, and what is concluded of a task."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from harnessrl.agents.evolver.attribute import OWNERS, WORDS, diagnose, informative_share, severity
from harnessrl.agents.scoring.diagnosis import (
    CLASSES,
    SIGNAL_CLASSES,
    agreement,
    collapse,
    group_signals,
    pair_classes,
    pool,
    signal_interval,
    signal_rate,
)
from harnessrl.memory.records import Diagnosis, Group
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.sampling import stream
from harnessrl.specs.schema import Interfaces, RubricInterface, RunSpec
from harnessrl.specs.updates import Mount, Pause
from hypothesis import given
from hypothesis import strategies as st
from scripted import group_record, harness_of, make_diagnosis, make_spec, make_task

X = math.nan


def classes(score: list[float], quality: list[float]) -> dict[str, int]:
    """The non-zero counts."""
    counts = pair_classes(np.array(score, dtype=float), np.array(quality, dtype=float))
    assert set(counts) == set(CLASSES)
    return {name: n for name, n in counts.items() if n}


# --- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "quality", "expected"),
    [
        ([0, 1], [0.2, 0.8], "informative"),
        ([1, 0], [0.8, 0.2], "informative"),
        ([-0.5, 0], [0.2, 0.8], "informative"),  # below the floor the order still counts
        ([0, 1], [0.5, 0.5], "spurious"),
        ([0, 1], [0.8, 0.2], "inversion"),
        ([0, 0], [0.2, 0.8], "blind_low"),
        ([-0.5, -0.5], [0.2, 0.8], "blind_low"),
        ([0.4, 0.4], [0.2, 0.8], "blind_mid"),
        ([1, 1], [0.2, 0.8], "blind_high"),
        ([0, 0], [0.5, 0.5], "neutral"),
        ([0.4, 0.4], [0.5, 0.5], "neutral"),
        ([1, 1], [0.5, 0.5], "neutral"),
        ([X, 1], [0.2, 0.8], "unknown"),
        ([0, 1], [0.2, X], "unknown"),
        ([1, 1], [X, X], "unknown"),  # no verdict of the oracle is no tie
        ([X, X], [0.2, 0.8], "unknown"),
    ],
)
def test_the_class_of_one_pair(score: list[float], quality: list[float], expected: str) -> None:
    assert classes(score, quality) == {expected: 1}


def test_rounding_noise_is_a_tie() -> None:
    assert classes([0.1 + 0.2, 0.3], [0.2, 0.8]) == {"blind_mid": 1}
    assert classes([0, 1], [0.1 + 0.2, 0.3]) == {"spurious": 1}
    assert classes([0.3, 0.3 + 1e-6], [0.2, 0.8]) == {"informative": 1}


def test_ties_inside_a_spread_group_stand_apart() -> None:
    # a, b tie at the floor with different quality: blind, but the group does spread.
    assert classes([0, 0, 1], [0.1, 0.2, 0.9]) == {"blind_spread": 1, "informative": 2}
    assert classes([1, 1, 0], [0.8, 0.9, 0.1]) == {"blind_spread": 1, "informative": 2}
    assert signal_rate(pair_classes(np.array([0, 0, 1.0]), np.array([0.1, 0.2, 0.9]))) == 1.0


def test_a_mixed_group_by_hand() -> None:
    score = [0.0, 0.5, 0.5, 1.0, X]
    quality = [0.3, 0.1, 0.3, 0.9, 0.5]
    # 01 inversion, 02 spurious, 03 informative, 12 blind inside a spread group, 13 and 23
    # informative, and four pairs with the unscored one.
    expected = {"inversion": 1, "spurious": 1, "informative": 3, "blind_spread": 1, "unknown": 4}
    assert classes(score, quality) == expected
    assert signal_rate(pair_classes(np.array(score), np.array(quality))) == 3 / 5


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ([0, 0, 0], "collapsed-low"),
        ([-0.25, -0.25], "collapsed-low"),
        ([0.5, 0.5], "collapsed-mid"),
        ([1e-6, 1e-6], "collapsed-mid"),
        ([1 - 1e-6, 1 - 1e-6], "collapsed-mid"),
        ([1, 1, 1], "collapsed-high"),
        ([1, 1, X], "collapsed-high"),
        ([0, 0, 1], "spread"),
        ([1, X, X], "unscored"),
        ([X, X], "unscored"),
    ],
)
def test_where_a_group_collapses(score: list[float], expected: str) -> None:
    assert collapse(np.array(score, dtype=float)) == expected


def test_signal_rate_counts_blind_pairs_of_collapsed_groups_only() -> None:
    counts = dict(zip(CLASSES, [6, 3, 2, 1, 4, 8, 100, 1000, 10000], strict=True))
    assert SIGNAL_CLASSES == (
        "informative",
        "spurious",
        "inversion",
        "blind_low",
        "blind_mid",
        "blind_high",
    )
    assert signal_rate(counts) == 6 / 24
    assert signal_rate(dict.fromkeys(CLASSES, 0) | {"neutral": 5, "blind_spread": 2}) is None
    assert informative_share(counts) == 6 / 1124  # of all pairs with known score and quality


def test_pooling_adds_counts() -> None:
    one = pair_classes(np.array([0, 1.0]), np.array([0.1, 0.2]))
    two = pair_classes(np.array([1, 1.0]), np.array([0.1, 0.2]))
    total = pool([one, two, two])
    assert (total["informative"], total["blind_high"], sum(total.values())) == (1, 2, 3)
    assert signal_rate(total) == pytest.approx(1 / 3)
    assert sum(pool([]).values()) == 0


levels = st.sampled_from([0.0, 0.5, 1.0])


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, X]), levels), min_size=2, max_size=9))
def test_every_pair_has_exactly_one_class(group: list[tuple[float, float]]) -> None:
    """... the one that the table of failure classes gives, read pair by pair."""
    scores = [s for s, _ in group if not math.isnan(s)]
    tied = len(set(scores)) < 2
    where = "spread" if not tied else {0.0: "low", 1.0: "high"}.get(scores[0] if scores else 0.5, "mid")
    expected: dict[str, int] = {}
    for (s1, q1), (s2, q2) in itertools.combinations(group, 2):
        if math.isnan(s1) or math.isnan(s2):
            name = "unknown"
        elif s1 == s2:
            name = "neutral" if q1 == q2 else f"blind_{where}"
        elif q1 == q2:
            name = "spurious"
        else:
            name = "informative" if (s1 > s2) == (q1 > q2) else "inversion"
        expected[name] = expected.get(name, 0) + 1
    assert classes([s for s, _ in group], [q for _, q in group]) == expected


# --- many groups at once -------------------------------------------------------------------------


def assert_agrees(score: list[float], quality: list[float]) -> None:
    score_G, quality_G = np.array(score), np.array(quality)
    counts = pair_classes(score_G, quality_G)
    signals = group_signals(score_G, quality_G, np.arange(len(score_G)))
    assert signals.informative == counts["informative"]
    assert signals.denominator == sum(counts[name] for name in SIGNAL_CLASSES)
    assert signals.pairs == sum(counts.values()) - counts["unknown"]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, X]), levels), min_size=2, max_size=9))
def test_group_signals_agree_with_pair_classes(group: list[tuple[float, float]]) -> None:
    assert_agrees([s for s, _ in group], [q for _, q in group])


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, X]), st.sampled_from([0.1, 0.5, 0.9, X])),
        min_size=2,
        max_size=9,
    )
)
def test_group_signals_agree_with_pair_classes_where_the_oracle_is_silent(
    group: list[tuple[float, float]],
) -> None:
    """A rollout without an oracle verdict still spreads its group's scores."""
    assert_agrees([s for s, _ in group], [q for _, q in group])


def test_group_signals_of_many_groups_are_those_of_each() -> None:
    rng = np.random.default_rng(1)
    score = rng.integers(3, size=(4, 5, 6)) / 2
    quality = rng.integers(3, size=(4, 5, 6)) / 2
    origin = np.broadcast_to(np.arange(6), score.shape)
    signals = group_signals(score, quality, origin)
    assert signals.informative.shape == (4, 5)
    for i, j in itertools.product(range(4), range(5)):
        counts = pair_classes(score[i, j], quality[i, j])
        assert signals.informative[i, j] == counts["informative"]
        assert signals.denominator[i, j] == sum(counts[name] for name in SIGNAL_CLASSES)
    pooled = signals.informative[2].sum() / signals.denominator[2].sum()
    assert signals.rate()[2] == pytest.approx(pooled)


def test_a_rollout_never_pairs_with_its_own_copy() -> None:
    score, quality = np.array([1.0, 1.0, 0.0]), np.array([0.9, 0.9, 0.1])
    apart = group_signals(score, quality, np.array([0, 1, 2]))
    copied = group_signals(score, quality, np.array([0, 0, 2]))
    assert (apart.pairs, copied.pairs) == (3, 2)
    assert (copied.informative, copied.denominator) == (2, 2)
    alone = group_signals(score[:2], quality[:2], np.array([5, 5]))
    assert (alone.pairs, alone.denominator) == (0, 0)


def test_a_rate_without_pairs_is_zero() -> None:
    signals = group_signals(np.array([[1.0, 1.0]]), np.array([[0.5, 0.5]]), np.array([[0, 1]]))
    assert signals.rate() == 0.0


# --- the interval --------------------------------------------------------------------------------

Arrays = tuple[np.ndarray, np.ndarray]


def interval(groups: list[Arrays], level: float = 0.9, seed: int = 0) -> tuple[float, float]:
    found = signal_interval(groups, stream(seed, "test"), level)
    assert found is not None
    return found


def point(groups: list[Arrays]) -> float:
    rate = signal_rate(pool(pair_classes(*g) for g in groups))
    assert rate is not None
    return rate


def dense_group(rng: np.random.Generator, noise: float) -> Arrays:
    quality = rng.random(8)
    return np.round((quality + noise * rng.standard_normal(8)) * 4) / 4, quality


def test_the_interval_resamples_rollouts_not_pairs() -> None:
    """Two rollouts carry everything: one makes 7 informative pairs, the other 6 inversions.

    Resampled pairs would stay near 7 of 13; without one of the two rollouts the rate is 0 or 1.
    """
    score = np.array([2.0, 1.0, 0, 0, 0, 0, 0, 0])
    quality = np.array([2.0, -1.0, 0, 0, 0, 0, 0, 0])
    assert point([(score, quality)]) == 7 / 13
    assert interval([(score, quality)]) == (0.0, 1.0)


def test_the_interval_narrows_with_groups_and_widens_with_its_level() -> None:
    rng = np.random.default_rng(0)
    groups = [dense_group(rng, 0.5) for _ in range(32)]
    widths = [np.diff(interval(groups[:n]))[0] for n in (2, 8, 32)]
    assert widths[0] > 1.5 * widths[1] > 2.25 * widths[2] > 0
    assert np.diff(interval(groups[:4], 0.5))[0] < np.diff(interval(groups[:4], 0.95))[0]


def test_the_interval_repeats_under_a_stream() -> None:
    groups = [dense_group(np.random.default_rng(3), 0.5)]
    assert interval(groups, seed=1) == interval(groups, seed=1)
    assert interval(groups, seed=1) != interval(groups, seed=2)


def test_no_interval_where_no_pair_could_carry_a_signal() -> None:
    tie = (np.array([1.0, 1.0]), np.array([0.5, 0.5]))
    unknown = (np.array([0.0, 1.0]), np.array([X, X]))
    assert signal_interval([tie, unknown], stream(0, "test")) is None
    assert signal_interval([], stream(0, "test")) is None


def test_the_interval_contains_the_point_estimate_mostly() -> None:
    rng = np.random.default_rng(5)
    inside = 0
    for n in range(60):
        groups = [dense_group(rng, 0.3 + 0.02 * n) for _ in range(3)]
        low, high = interval(groups)
        inside += low <= point(groups) <= high
    assert inside >= 54


def test_the_interval_contains_the_point_estimate_where_few_rollouts_score() -> None:
    """Sparse rewards: in each group the one good answer scores, the others tie at the floor.

    Every pair that could carry a signal carries one. A bootstrap sample without the good answer ties
    throughout; the ties of a group that does spread are no blind pairs for that.
    """
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(20):
        groups = []
        for _ in range(8):
            quality = rng.random(8) / 2
            quality[0] = 0.9
            groups.append((np.eye(8)[0], quality))
        assert point(groups) == 1.0
        low, high = interval(groups)
        inside += low <= 1.0 <= high
    assert inside >= 18


# --- agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "quality", "expected"),
    [
        ([0, 1, 2], [0.1, 0.2, 0.3], 1.0),
        ([2, 1, 0], [0.1, 0.2, 0.3], -1.0),
        ([0, 0, 1], [0.1, 0.2, 0.3], 2 / 3),
        ([1, 1, 1], [0.1, 0.2, 0.3], 0.0),
        ([0, 1, 2], [0.1, 0.1, 0.3], 1.0),  # the pair of equals does not count
        ([0, 1, 2], [0.5, 0.5, 0.5], 0.0),
        ([0, X, 2], [0.1, 0.2, 0.3], 1.0),
        ([0, 1, 2], [0.1, X, 0.3], 1.0),
        ([1, 0, 2], [0.1, 0.2, 0.3], 1 / 3),
    ],
)
def test_agreement_by_hand(score: list[float], quality: list[float], expected: float) -> None:
    assert agreement(np.array(score, dtype=float), np.array(quality)) == pytest.approx(expected)


@given(st.lists(st.tuples(levels, levels), min_size=2, max_size=9))
def test_agreement_is_bounded_and_turns_with_the_score(group: list[tuple[float, float]]) -> None:
    score, quality = np.array([s for s, _ in group]), np.array([q for _, q in group])
    tau = agreement(score, quality)
    assert -1 <= tau <= 1
    assert agreement(-score, quality) == pytest.approx(-tau)
    assert agreement(3 * score + 1, quality) == pytest.approx(tau)


# --- what is concluded about a task --------------------------------------------------------------

Q = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
SAME = [0.5] * 8
TASK = make_task("t")


def groups_of(rewards: list[float], quality: list[float], n: int = 3, task_id: str = "t") -> list[Group]:
    task = make_task(task_id)
    return [group_record(task, rewards, quality, step, 0) for step in range(n)]


def conclude(
    groups: list[Group],
    domain_groups: list[Group] | None = None,
    harness: HarnessState | None = None,
    spec: RunSpec | None = None,
) -> Diagnosis:
    state = harness or harness_of(TASK)
    return diagnose("t", groups, domain_groups or [], state, spec or make_spec(), step=5)


@pytest.mark.parametrize(
    ("rewards", "quality", "failure", "interfaces"),
    [
        ([0.0, 1.0] * 4, SAME, "spurious", ["c"]),
        ([0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], Q, "inversion", ["c"]),
        ([0.0] * 8, Q, "blind_low", ["g", "p"]),
        ([0.5] * 8, Q, "blind_mid", ["c"]),
        ([1.0] * 8, Q, "blind_high", ["c", "p"]),
        ([1.0] * 8, SAME, "mastered", ["p"]),
        ([0.0] * 8, SAME, "neutral", []),
        (Q, Q, "healthy", []),
    ],
)
def test_each_failure_class_goes_to_its_owner(
    rewards: list[float], quality: list[float], failure: str, interfaces: list[str]
) -> None:
    found = conclude(groups_of(rewards, quality))
    assert (found.failure, found.interfaces) == (failure, interfaces)
    assert found.evidence == ["g-000000-0", "g-000001-0", "g-000002-0"]
    assert WORDS[failure] in found.sentence and "3 groups" in found.sentence
    assert found.id == "d-000005-t"


def test_every_conclusion_has_owners_and_words() -> None:
    assert set(OWNERS) == set(WORDS)


def test_a_rate_comes_with_its_interval() -> None:
    mixed = groups_of([0.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], n=2)
    mixed += groups_of([0.0, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], n=1)
    found = conclude(mixed)
    assert found.signal_rate == 6 / 18
    assert found.pairs["blind_low"] == 12 and found.pairs["informative"] == 6
    assert found.interval is not None and found.interval[0] <= 6 / 18 <= found.interval[1]
    assert "signal rate 0.33" in found.sentence


def test_little_evidence_concludes_nothing() -> None:
    found = conclude(groups_of([1.0] * 8, Q, n=1))
    assert (found.failure, found.interfaces) == ("not_enough_evidence", [])
    asked_for_more = conclude(groups_of([1.0] * 8, Q, n=3), spec=make_spec(min_groups=4))
    assert asked_for_more.failure == "not_enough_evidence"


def test_nothing_is_concluded_without_an_oracle() -> None:
    silent: list[float | None] = [None] * 8
    groups = [group_record(TASK, [1.0] * 8, silent, step) for step in range(4)]
    found = conclude(groups)
    assert (found.failure, found.interfaces) == ("not_enough_evidence", [])
    assert found.signal_rate is None and found.interval is None


@given(
    st.lists(
        st.lists(st.tuples(levels, st.sampled_from([0.1, 0.4, 0.9])), min_size=8, max_size=8),
        min_size=2,
        max_size=6,
    )
)
def test_a_failure_is_only_named_where_pairs_show_it(
    drawn: list[list[tuple[float, float]]],
) -> None:
    groups = [
        group_record(TASK, [s for s, _ in group], [q for _, q in group], step)
        for step, group in enumerate(drawn)
    ]
    found = conclude(groups)
    if found.failure in SIGNAL_CLASSES:
        assert found.pairs[found.failure] > 0  # type: ignore[index]


def test_rare_success_with_perfect_order_is_no_failure() -> None:
    """Ten groups in which the best answer alone scores: no pair is spurious, inverted or blind."""
    groups = groups_of([0.0] * 7 + [1.0], Q, n=10)
    found = conclude(groups)
    assert found.signal_rate == 1.0
    assert (found.failure, found.interfaces) == ("healthy", [])


def test_guidance_comes_off_first_where_everything_is_at_the_ceiling() -> None:
    mount = Mount(task_ids=("t",), rationale="", lines=("aim high",), share=0.5)
    guided = apply(harness_of(TASK), [mount])
    assert conclude(groups_of([1.0] * 8, Q), harness=guided).interfaces == ["g", "c", "p"]
    assert conclude(groups_of([0.0] * 8, Q), harness=guided).interfaces == ["g", "p"]


def test_an_interface_that_may_not_evolve_owns_nothing() -> None:
    frozen = make_spec().model_copy(update={"interfaces": Interfaces(c=RubricInterface(evolve=False))})
    assert conclude(groups_of([1.0] * 8, Q), spec=frozen).interfaces == ["p"]
    assert conclude(groups_of([0.5] * 8, Q), spec=frozen).interfaces == []


def test_a_paused_task_recovers_when_its_probes_give_signal() -> None:
    paused = apply(harness_of(TASK), [Pause(task_ids=("t",), rationale="")])
    back = conclude(groups_of(Q, Q, n=2), harness=paused)
    assert (back.failure, back.interfaces) == ("recovered", ["p"])
    assert conclude(groups_of([1.0] * 8, SAME, n=2), harness=paused).interfaces == []


def test_underused_means_clearly_more_signal_than_the_rest_of_its_domain() -> None:
    good, poor = groups_of(Q, Q), groups_of([0.0] * 8, SAME, task_id="other")
    assert conclude(good, poor).failure == "underused"
    assert conclude(good, poor[:1]).failure == "healthy"  # too little to compare with
    assert conclude(good, groups_of(Q, Q, task_id="other")).failure == "healthy"


def test_severity_is_the_signal_a_step_loses() -> None:
    blind = make_diagnosis(TASK, "blind_high", ["c"], signal_rate=0.25)
    assert severity(blind, 0.2) == pytest.approx(0.15)
    mastered = make_diagnosis(TASK, "mastered", ["p"], signal_rate=None)
    assert severity(mastered, 0.2) == pytest.approx(0.2)  # all of it
