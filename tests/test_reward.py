"""Verdicts to rewards to advantages, against the rules written out a second time in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import mean, stdev

import numpy as np
import pytest
from harnessrl.agents.scoring.reward import group_advantages, group_rewards
from harnessrl.agents.scoring.scorer import Scorer
from harnessrl.agents.usage import Usage
from harnessrl.specs.schema import Oracle
from harnessrl.specs.tasks import Criterion, Quality
from hypothesis import assume, given
from hypothesis import strategies as st
from scripted import make_task, says

X = math.nan  # an unscored verdict


def rewards(points: list[float], met: list[list[float]], max_dropped: float = 0.2) -> list[float]:
    return group_rewards(np.array(points), np.array(met, dtype=float), max_dropped)[0].tolist()


def dropped(points: list[float], met: list[list[float]], max_dropped: float = 0.2) -> list[bool]:
    return group_rewards(np.array(points), np.array(met, dtype=float), max_dropped)[1].tolist()


def same(found: list[float], wanted: list[float | None]) -> bool:
    clean = [X if w is None else float(w) for w in wanted]
    return bool(np.allclose(found, clean, rtol=0, atol=1e-12, equal_nan=True))


# --- R_raw ---------------------------------------------------------------------------------------


def test_points_met_over_positive_points() -> None:
    points = [3.0, 1.0, -2.0]
    met = [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1]]
    assert same(rewards(points, met), [1.0, 0.75, -0.25, -0.5, 0.5])  # nothing is clipped


def test_a_rubric_of_penalties_starts_at_one() -> None:
    met = [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert same(rewards([-1.0, -3.0], met), [1.0, 0.75, 0.25, 0.0])


def test_a_small_unscored_criterion_is_dropped_for_the_whole_group() -> None:
    points = [4.0, 4.0, 2.0]  # the third: 2 of 10 points, exactly the 20%
    met = [[1, 1, X], [1, 0, 1], [0, 1, 0]]
    assert dropped(points, met) == [False, False, True]
    # The denominator leaves it out for the siblings too, although theirs was scored.
    assert same(rewards(points, met), [1.0, 0.5, 0.5])


def test_above_a_fifth_only_the_affected_rollouts_lose_their_reward() -> None:
    points = [4.0, 3.9, 2.1]
    met = [[1, 1, X], [1, 0, 1], [0, 1, 0]]
    assert dropped(points, met) == [False, False, False]
    assert same(rewards(points, met), [None, 0.61, 0.39])


def test_the_share_counts_penalties_by_size_and_all_dropped_ones_together() -> None:
    points = [4.0, 4.0, -1.0, -1.0]  # 10 in size; the penalties are 10% each
    one = [[1, 0, X, 1], [0, 0, 0, 1]]
    assert dropped(points, one) == [False, False, True, False]
    assert same(rewards(points, one), [0.375, -0.125])
    both = [[1, 0, X, 1], [0, 0, 1, X], [1, 1, 1, 1]]
    assert dropped(points, both) == [False, False, True, True]
    assert same(rewards(points, both), [0.5, 0.0, 1.0])
    heavier = [4.0, 4.0, -1.2, -1.0]  # 2.2 of 10.2 points
    assert dropped(heavier, both) == [False] * 4
    assert same(rewards(heavier, both), [None, None, (8 - 2.2) / 8])


def test_a_penalty_is_never_waived_for_one_rollout_alone() -> None:
    small = [[1, 1, X], [1, 1, 1], [1, 1, 0]]
    assert same(rewards([5.0, 4.0, -1.0], small), [1.0, 1.0, 1.0])  # waived for all three
    large = [[1, X], [1, 1], [1, 0]]
    assert same(rewards([5.0, -4.0], large), [None, 0.2, 1.0])  # or for none


def test_no_positive_point_left_means_no_reward() -> None:
    points = [1.0, -9.0]  # dropping the only positive criterion is allowed: 10%
    met = [[X, 0], [1, 1]]
    assert dropped(points, met) == [True, False]
    # Which formula applies follows from the full rubric: this one had a positive point.
    assert same(rewards(points, met), [None, None])


def test_penalties_only_with_some_dropped() -> None:
    points = [-8.0, -1.0, -1.0]
    met = [[0, X, 1], [1, 0, 0]]
    assert same(rewards(points, met), [1 - 1 / 9, 1 - 8 / 9])
    assert same(rewards([-1.0, -1.0], [[X, X], [0, 1]], max_dropped=1.0), [None, None])


def test_max_dropped_is_the_callers() -> None:
    met = [[1, X], [0, 1]]
    assert same(rewards([3.0, 1.0], met, max_dropped=0.25), [1.0, 0.0])
    assert same(rewards([3.0, 1.0], met, max_dropped=0.24), [None, 0.25])
    assert same(rewards([3.0, 1.0], met, max_dropped=0.0), [None, 0.25])
    assert same(rewards([3.0, 1.0], [[1, 1], [0, 1]], max_dropped=0.0), [1.0, 0.25])


Verdicts = list[list[int | None]]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[int], Verdicts]:
    n_criteria = draw(st.integers(1, 5))
    sizes = st.integers(-6, 6).filter(bool)
    points = draw(st.lists(sizes, min_size=n_criteria, max_size=n_criteria))
    verdict = st.sampled_from([0, 1, 0, 1, 0, 1, None])
    row = st.lists(verdict, min_size=n_criteria, max_size=n_criteria)
    return points, draw(st.lists(row, min_size=1, max_size=6))


def by_the_rules(points: list[int], met: Verdicts) -> list[float | None]:
    """The formula, word by word, in fractions; 20% may be dropped."""
    every = range(len(points))
    gaps = [k for k in every if any(row[k] is None for row in met)]
    few = 5 * sum(abs(points[k]) for k in gaps) <= sum(map(abs, points))
    kept = [k for k in every if not (few and k in gaps)]
    had_positive = any(p > 0 for p in points)
    scale = sum(points[k] for k in kept if points[k] > 0)
    if not had_positive:
        scale = sum(abs(points[k]) for k in kept)
    out: list[float | None] = []
    for row in met:
        if scale == 0 or any(row[k] is None for k in kept):
            out.append(None)
            continue
        gained = Fraction(sum(points[k] * (row[k] or 0) for k in kept), scale)
        out.append(float(gained if had_positive else 1 + gained))
    return out


def as_floats(met: Verdicts) -> list[list[float]]:
    return [[X if m is None else float(m) for m in row] for row in met]


@given(groups())
def test_rewards_follow_the_rules(group: tuple[list[int], Verdicts]) -> None:
    points, met = group
    assert same(rewards([float(p) for p in points], as_floats(met)), by_the_rules(points, met))


@given(groups(), st.randoms())
def test_order_plays_no_part(group: tuple[list[int], Verdicts], random: object) -> None:
    points, met = group
    before = rewards([float(p) for p in points], as_floats(met))
    columns, rows = list(range(len(points))), list(range(len(met)))
    random.shuffle(columns)  # type: ignore[attr-defined]
    random.shuffle(rows)  # type: ignore[attr-defined]
    shuffled = [[met[i][k] for k in columns] for i in rows]
    after = rewards([float(points[k]) for k in columns], as_floats(shuffled))
    assert np.allclose(after, [before[i] for i in rows], atol=1e-12, equal_nan=True)


@given(groups(), st.data())
def test_one_more_penalty_costs_the_same_for_everybody(
    group: tuple[list[int], Verdicts], data: st.DataObject
) -> None:
    """Nobody is rescaled against their siblings, and no penalty is waived for one rollout."""
    points, met = group
    floats = [float(p) for p in points]
    before, was_dropped = rewards(floats, as_floats(met)), dropped(floats, as_floats(met))
    penalties = [
        (i, k)
        for i, row in enumerate(met)
        for k, m in enumerate(row)
        if m == 0 and points[k] < 0 and not was_dropped[k] and not math.isnan(before[i])
    ]
    assume(penalties)
    i, k = data.draw(st.sampled_from(penalties))
    met[i][k] = 1
    after = rewards(floats, as_floats(met))
    kept = [p for p, gone in zip(points, was_dropped, strict=True) if not gone]
    scale = sum(p for p in kept if p > 0) or sum(map(abs, kept))
    assert after[i] == pytest.approx(before[i] + points[k] / scale)
    others = [j for j in range(len(met)) if j != i]
    assert np.allclose([after[j] for j in others], [before[j] for j in others], equal_nan=True)


# --- gates ---------------------------------------------------------------------------------------


def gated(points: list[float], met: list[list[float]], caps: list[float]) -> list[float]:
    met_GK = np.array(met, dtype=float)
    return group_rewards(np.array(points), met_GK, 0.2, np.array(caps))[0].tolist()


def test_a_gate_caps_the_reward_of_who_fails_it() -> None:
    points, caps = [3.0, 1.0], [X, 0.5]
    met = [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert same(gated(points, met, caps), [1.0, 0.5, 0.25, 0.0])  # 0.75 is cut, 0.0 is not raised


def test_a_gate_on_a_penalty_caps_who_meets_it() -> None:
    points, caps = [4.0, -1.0], [X, 0.25]
    met = [[1, 0], [1, 1], [0, 1]]
    assert same(gated(points, met, caps), [1.0, 0.25, -0.25])
    assert same(gated([-1.0, -3.0], [[0, 0], [1, 0], [0, 1]], [0.0, X]), [1.0, 0.0, 0.25])


def test_the_lowest_failed_gate_counts() -> None:
    points, caps = [1.0, 1.0, 8.0], [0.6, 0.3, X]
    met = [[0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 1]]
    assert same(gated(points, met, caps), [0.6, 0.3, 0.3, 1.0])


def test_a_gate_that_was_dropped_caps_nobody() -> None:
    """Dropped for the whole group: also for the sibling that was seen to fail it."""
    met = [[1, X], [1, 0], [0, 1]]
    assert same(gated([4.0, 1.0], met, [X, 0.0]), [1.0, 1.0, 0.0])


def test_no_reward_stays_none_behind_a_gate() -> None:
    met = [[1, X], [1, 0], [1, 1]]  # half of the points: not dropped
    assert same(gated([1.0, 1.0], met, [X, 0.25]), [None, 0.25, 1.0])
    assert same(gated([1.0, 1.0], [[0, X], [1, 1]], [0.25, X]), [None, 1.0])  # a failed gate gives none


@given(groups(), st.lists(st.sampled_from([X, 0.0, 0.25, 0.5]), min_size=5, max_size=5))
def test_gates_only_ever_cap(group: tuple[list[int], Verdicts], caps: list[float]) -> None:
    points, met = [float(p) for p in group[0]], as_floats(group[1])
    before, gone = rewards(points, met), dropped(points, met)
    wanted = [
        min(
            [
                reward,
                *(caps[k] for k, m in enumerate(row) if not gone[k] and failed(points[k], m, caps[k])),
            ]
        )
        for reward, row in zip(before, met, strict=True)
    ]
    assert same(gated(points, met, caps[: len(points)]), wanted)
    assert same(gated(points, met, [X] * len(points)), before)  # no gate, nothing changes


def failed(points: float, met: float, cap: float) -> bool:
    return not math.isnan(cap) and met == (0.0 if points > 0 else 1.0)


def test_the_scorer_takes_gates_from_the_criteria() -> None:
    gate = says("beta", 1.0).model_copy(update={"gate": 0.5})
    rubric = [says("alpha", 3.0), gate]
    scorer = Scorer(Oracle(), Usage(), 0.2)
    met_GK = scorer.verdicts(make_task(rubric=rubric), rubric, ["alpha", "alpha beta", "x"], "train")
    assert same(scorer.rewards(rubric, met_GK).tolist(), [0.5, 1.0, 0.0])
    stacked = scorer.rewards(rubric, np.stack([met_GK, met_GK[::-1]]))  # as the critic's drawn groups
    assert stacked.tolist() == [[0.5, 1.0, 0.0], [0.0, 1.0, 0.5]]
    open_ = [says("alpha", 3.0), says("beta", 1.0)]
    assert same(scorer.rewards(open_, met_GK).tolist(), [0.75, 1.0, 0.0])


# --- advantages ----------------------------------------------------------------------------------


def advantages(
    values: list[float],
    guided: list[bool] | None = None,
    advantage: str = "group_norm",
    baseline: str = "group",
    mismatch: str = "ignore",
) -> list[float]:
    flags = np.array(guided if guided is not None else [False] * len(values))
    return group_advantages(np.array(values), flags, advantage, baseline, mismatch).tolist()  # type: ignore[arg-type]


def test_group_norm_divides_by_the_sample_std() -> None:
    # mean 0.5, squared deviations 0.25 + 0.25, over n - 1 = 2: std 0.5
    assert advantages([0.0, 0.5, 1.0]) == pytest.approx([-1.0, 0.0, 1.0])
    # mean 0.25, std sqrt((3 * 0.0625 + 0.5625) / 3) = 0.5
    assert advantages([0.0, 0.0, 0.0, 1.0]) == pytest.approx([-0.5, -0.5, -0.5, 1.5])


def test_dr_grpo_only_takes_the_mean_off() -> None:
    found = advantages([0.0, 0.0, 0.0, 1.0], advantage="dr_grpo")
    assert found == pytest.approx([-0.25, -0.25, -0.25, 0.75])


@pytest.mark.parametrize("advantage", ["group_norm", "dr_grpo"])
def test_a_group_without_spread_teaches_nothing(advantage: str) -> None:
    assert advantages([0.7] * 4, advantage=advantage) == [0.0] * 4
    assert advantages([0.7, 0.7 + 1e-9, 0.7], advantage=advantage) == [0.0] * 3
    assert advantages([0.7], advantage=advantage) == [0.0]
    assert advantages([X, X], advantage=advantage) == [0.0, 0.0]
    assert advantages([0.7, X, X], advantage=advantage) == [0.0] * 3


def test_std_just_above_the_floor_counts() -> None:
    step = 1e-5
    assert advantages([0.0, step, 2 * step]) == pytest.approx([-1.0, 0.0, 1.0])


def test_unscored_rollouts_get_zero_and_leave_mean_and_std() -> None:
    assert advantages([0.0, X, 0.5, 1.0, X]) == pytest.approx([-1.0, 0.0, 0.0, 0.0 + 1.0, 0.0])
    # As zeros they would have moved the mean from 0.75 to 0.5.
    found = advantages([0.5, X, 1.0], advantage="dr_grpo")
    assert found == pytest.approx([-0.25, 0.0, 0.25])


def test_strata_have_their_own_baselines() -> None:
    values = [0.6, 0.8, 0.0, 0.2, 0.4]
    guided = [True, True, False, False, False]
    found = advantages(values, guided, advantage="dr_grpo", baseline="stratum")
    assert found == pytest.approx([-0.1, 0.1, -0.2, 0.0, 0.2])
    normed = advantages(values, guided, baseline="stratum")
    root_half = math.sqrt(0.5)
    assert normed == pytest.approx([-root_half, root_half, -1.0, 0.0, 1.0])


def test_a_stratum_of_one_has_no_baseline() -> None:
    found = advantages([1.0, 0.0, 0.5, 1.0], [True, False, False, False], baseline="stratum")
    assert found == pytest.approx([0.0, -1.0, 0.0, 1.0])
    unscored = advantages([1.0, X, 0.0, 1.0], [True, True, False, False], baseline="stratum")
    assert unscored[:2] == [0.0, 0.0]


def test_positive_only_mutes_what_guided_rollouts_did_worse() -> None:
    values = [0.0, 1.0, 0.0, 1.0]
    guided = [True, True, False, False]
    free = advantages(values, guided, advantage="dr_grpo")
    assert free == pytest.approx([-0.5, 0.5, -0.5, 0.5])
    found = advantages(values, guided, advantage="dr_grpo", mismatch="positive_only")
    assert found == pytest.approx([0.0, 0.5, -0.5, 0.5])


values_or_gaps = st.one_of(st.integers(-8, 8).map(lambda n: n / 4), st.just(X))
rollout = st.tuples(values_or_gaps, st.booleans())


@given(
    st.lists(rollout, min_size=1, max_size=10),
    st.sampled_from(["group_norm", "dr_grpo"]),
    st.sampled_from(["group", "stratum"]),
    st.sampled_from(["positive_only", "ignore"]),
)
def test_advantages_follow_the_rules(
    group: list[tuple[float, bool]], advantage: str, baseline: str, mismatch: str
) -> None:
    wanted = [0.0] * len(group)
    for stratum in (True, False) if baseline == "stratum" else (None,):
        mine = [
            i
            for i, (value, guided) in enumerate(group)
            if stratum in (None, guided) and not math.isnan(value)
        ]
        scores = [group[i][0] for i in mine]
        if len(set(scores)) < 2:
            continue
        scale = stdev(scores) if advantage == "group_norm" else 1.0
        for i in mine:
            wanted[i] = (group[i][0] - mean(scores)) / scale
            if mismatch == "positive_only" and group[i][1]:
                wanted[i] = max(0.0, wanted[i])
    found = advantages([v for v, _ in group], [g for _, g in group], advantage, baseline, mismatch)
    assert found == pytest.approx(wanted, abs=1e-9)


@given(
    st.lists(st.integers(-8, 8), min_size=3, max_size=8).filter(lambda v: len(set(v)) > 1),
    st.floats(0.1, 10),
    st.floats(-5, 5),
)
def test_group_norm_forgets_scale_and_offset(values: list[int], scale: float, offset: float) -> None:
    plain = advantages([float(v) for v in values])
    moved = advantages([v * scale + offset for v in values])
    assert moved == pytest.approx(plain, abs=1e-6)
    assert sum(plain) == pytest.approx(0.0, abs=1e-9)
    assert stdev(plain) == pytest.approx(1.0)


# --- the scorer ----------------------------------------------------------------------------------


def test_the_scorer_leaves_what_it_cannot_decide_unscored_and_counts_every_call() -> None:
    usage = Usage()
    scorer = Scorer(Oracle(), usage, max_dropped=0.2)
    judged = Criterion(text="The response is kind.", points=1.0)  # no check, and there is no judge
    rubric = [says("alpha", 4.0), judged]
    task = make_task(rubric=rubric)
    met_GK = scorer.verdicts(task, rubric, ["alpha", "beta", "alpha beta"], "critic")
    assert np.isnan(met_GK[:, 1]).all() and met_GK[:, 0].tolist() == [1.0, 0.0, 1.0]
    assert same(scorer.rewards(rubric, met_GK).tolist(), [1.0, 0.0, 1.0])
    assert same(Scorer(Oracle(), usage, 0.1).rewards(rubric, met_GK).tolist(), [None] * 3)
    assert usage.judge_calls == {"train": 0, "critic": 6, "probe": 0}


def test_quality_is_unknown_without_an_oracle_or_a_description() -> None:
    described = make_task(quality=Quality(topic=(("cat",),)))
    answer = ["the cat sat on the mat and it was very happy there."]
    assert Scorer(Oracle(), Usage(), 0.2).quality(described, answer).q_N[0] > 0.5
    assert np.isnan(Scorer(Oracle(kind="none"), Usage(), 0.2).quality(described, answer).q_N).all()
    assert np.isnan(Scorer(Oracle(), Usage(), 0.2).quality(make_task(), answer).q_N).all()
