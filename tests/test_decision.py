"""`accept`: the rule by itself, and with real resampling where a single rollout carries a gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harnessrl.agents.evolver.critic import Critic
from harnessrl.agents.evolver.decision import Guard, Outcome, Replicates, accept
from harnessrl.memory.records import Measurement
from harnessrl.specs.updates import Add
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    PlainScorer,
    ScriptedPolicy,
    by_index,
    harness_of,
    make_memory,
    make_spec,
    make_task,
    says,
)

ALPHA, MARGIN = 0.025, 0.05
HOLDS = {"agreement": Guard(0.2, 0.2)}


def outcome(
    gain_R: list[float],
    gain: float | None = None,
    guards: dict[str, Guard] | None = None,
    alpha: float = ALPHA,
    before: float = 0.3,
) -> Outcome:
    """`accept` for replicates of the gain over `before`; the point estimate is their mean."""
    gains = np.array(gain_R, dtype=float)
    point = float(gains.mean()) if gain is None else gain
    before_R = np.full(len(gains), before)
    signal = Replicates(before, before + point, before_R, before_R + gains)
    return accept(signal, HOLDS if guards is None else guards, alpha, MARGIN, rollouts=32)


def share_without_gain(share: float, n: int = 1000) -> list[float]:
    """Replicates of which exactly `share` show no gain and the others a large one."""
    none = round(share * n)
    return [-0.1] * none + [0.4] * (n - none)


# --- the rule ------------------------------------------------------------------------------------


def test_a_clear_gain_is_accepted_and_told() -> None:
    found = outcome([0.2] * 100)
    assert found.accepted and not found.open
    assert found.reason == "gain +0.20 (+0.20 to +0.20), P(no gain) 0.000 <= 0.025, guards held"


def test_alpha_is_the_largest_allowed_chance_of_no_gain() -> None:
    assert outcome(share_without_gain(0.025)).accepted
    above = outcome(share_without_gain(0.026))
    assert not above.accepted and above.open
    assert above.reason.endswith("may be luck: P(no gain) 0.026 is above 0.025")
    assert outcome(share_without_gain(0.1), alpha=0.1).accepted
    assert not outcome(share_without_gain(0.101), alpha=0.1).accepted


def test_a_replicate_without_any_change_shows_no_gain() -> None:
    found = outcome([0.0] * 30 + [0.4] * 970)
    assert not found.accepted
    assert found.measured.p_no_gain == 0.03


def test_a_gain_below_the_margin_is_not_worth_a_change() -> None:
    certain = outcome([0.049] * 100)
    assert not certain.accepted and not certain.open  # more rollouts would not lift it
    assert certain.reason == "gain +0.05 (+0.05 to +0.05) is below the margin 0.05"
    assert outcome([0.051] * 100).accepted


def test_below_the_margin_is_open_while_a_worthwhile_gain_is_in_reach() -> None:
    wide = [-0.1] * 50 + [0.15] * 50
    assert outcome(wide, gain=0.025).open
    assert not outcome(wide, gain=-0.01).open  # nothing gained so far
    assert not outcome(wide, gain=0.0).open
    assert not outcome([0.01] * 50 + [0.04] * 50).open  # the interval ends below the margin
    assert not outcome([0.0] * 100).accepted
    assert not outcome([-0.3] * 100).accepted and not outcome([-0.3] * 100).open


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (Guard(0.5, 0.5), True),
        (Guard(0.5, 0.6), True),
        (Guard(0.5, 0.4999), False),
        (Guard(0.5, 0.5, strict=True), False),
        (Guard(0.5, 0.5001, strict=True), True),
        (Guard(0.5, float("nan")), False),
        (Guard(float("nan"), 0.5, strict=True), False),
    ],
)
def test_guards(guard: Guard, holds: bool) -> None:
    assert guard.holds is holds
    found = outcome([0.4] * 100, guards={"mean quality": guard})
    assert found.accepted is holds


def test_a_failed_guard_beats_any_gain_and_is_final() -> None:
    guards = {"mean quality": Guard(0.5, 0.1), "fine": Guard(0.1, 0.2), "top": Guard(0.9, 0.9, True)}
    found = outcome([0.4] * 100, guards=guards)
    assert not found.accepted and not found.open
    assert found.reason == (
        "guard failed: mean quality 0.50 -> 0.10, top 0.90 -> 0.90; gain +0.40 (+0.40 to +0.40)"
    )


def test_everything_measured_is_kept() -> None:
    gains = list(np.linspace(-0.1, 0.5, 601))  # 0.001 apart: 101 of them are not above 0
    found = outcome(gains, gain=0.2, alpha=0.05, before=0.25)
    assert not found.accepted
    m = found.measured
    assert (m.before, m.after, m.gain) == (0.25, 0.45, pytest.approx(0.2))
    assert m.interval == (pytest.approx(-0.07), pytest.approx(0.47))  # 5% cut off at either end
    assert m.p_no_gain == pytest.approx(101 / 601, abs=0.0017)
    assert (m.alpha, m.margin, m.rollouts) == (0.05, MARGIN, 32)
    assert m.guards == {"agreement": (0.2, 0.2)}
    assert Measurement.model_validate_json(m.model_dump_json()) == m


@given(
    st.lists(st.floats(-1, 1), min_size=20, max_size=60),
    st.floats(-1, 1),
    st.floats(0.001, 0.4),
    st.floats(-1, 1),
)
def test_accepted_exactly_where_margin_alpha_and_guard_say_so(
    gain_R: list[float], gain: float, alpha: float, guard_change: float
) -> None:
    guards = {"guard": Guard(0.0, guard_change)}
    signal = Replicates(0.0, gain, np.zeros(len(gain_R)), np.array(gain_R))
    found = accept(signal, guards, alpha, MARGIN, rollouts=1)
    chance = sum(g <= 0 for g in gain_R) / len(gain_R)
    assert found.accepted == (gain >= MARGIN and chance <= alpha and guard_change >= 0)
    assert found.reason
    assert not (found.accepted and found.open)
    if guard_change < 0:
        assert not found.open


# --- one lucky rollout, through the critic -------------------------------------------------------

POOR = [f"{0.1 + 0.01 * (i % 7):.2f} words" for i in range(64)]
GEM = Add(task_ids=("t",), rationale="", criterion=says("gem"))


def judge_gem(texts: list[str], tmp_path: Path, seed: int = 0, **evolver: float) -> Outcome:
    """The decision on adding the criterion "says gem" to a rubric that nothing meets."""
    spec = make_spec(seed, **evolver)
    policy = ScriptedPolicy(by_index(texts), version=3)
    critic = Critic(policy, PlainScorer(), make_memory(tmp_path), spec)
    return critic.judge(GEM, harness_of(make_task("t")), step=2, revision=0)


def with_gems(*at: int) -> list[str]:
    return [f"0.90 gem {i}" if i in at else text for i, text in enumerate(POOR)]


@pytest.mark.parametrize("lucky", [0, 13, 31])
@pytest.mark.parametrize("evolver", [{}, {"alpha": 0.3, "extended_rollouts": 32, "max_revisions": 0}])
def test_a_lucky_single_rollout_must_not_win(
    lucky: int, evolver: dict[str, float], tmp_path: Path
) -> None:
    """One good response of N is told apart by the candidate: a large gain, and luck.

    A bootstrap sample misses it with probability (1 - 1/N)^N, so no p below a third can come out,
    whatever the seed; not even an alpha of 0.3 for a single look lets it pass.
    """
    found = judge_gem(with_gems(lucky), tmp_path, **evolver)
    n = found.measured.rollouts
    assert n == (32 if evolver else 64)
    assert not found.accepted
    assert found.measured.p_no_gain == pytest.approx((1 - 1 / n) ** n, abs=0.07)
    if evolver:
        assert found.measured.gain > MARGIN and "may be luck" in found.reason


def test_the_only_telling_pair_of_rollouts_may_be_luck_too(tmp_path: Path) -> None:
    """All other rollouts are equally good, so before: no signal at all; after: a rate of 1."""
    texts = ["0.50 words"] * 64
    texts[5] = "0.90 gem"
    found = judge_gem(texts, tmp_path, extended_rollouts=32)
    assert (found.measured.before, found.measured.after) == (0.0, 1.0)
    assert not found.accepted
    assert found.measured.p_no_gain == pytest.approx((31 / 32) ** 32, abs=0.07)


def test_the_same_criterion_wins_where_many_rollouts_speak_for_it(tmp_path: Path) -> None:
    found = judge_gem(with_gems(*range(0, 64, 3)), tmp_path)
    assert found.accepted
    assert found.measured.rollouts == 32
    assert found.measured.guards["agreement with quality"][0] == 0.0
