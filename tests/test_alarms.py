"""Alarms: what raises each of them, and what does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from harnessrl.agents.scoring.alarms import MIN_GROUPS, MOST, Alarm, alarms
from harnessrl.agents.scoring.diagnosis import collapse, pair_classes
from harnessrl.memory.records import Group
from harnessrl.specs.tasks import Criterion

GOOD = Criterion(text="It is good.", points=2)
BAD = Criterion(text="It is bad.", points=-2)
KNOWN = {c.id: c for c in (GOOD, BAD)}
KNOWN_IDS = {"good": GOOD.id, "bad": BAD.id}
STEPS = 16


def group(
    step: int,
    rewards: Sequence[float],
    quality: Sequence[float | None],
    domain: str = "d",
    **met: list[bool],
) -> Group:
    known = np.array([np.nan if q is None else q for q in quality])
    return Group(
        id=f"g-{step}-{domain}",
        step=step,
        harness_version=0,
        slot=0,
        task_id="t",
        domain=domain,
        rewards=list(rewards),
        quality=list(quality),
        guided=[False] * len(rewards),
        met={KNOWN_IDS[name]: list(verdicts) for name, verdicts in met.items()},
        collapse=collapse(np.array(rewards)),
        pairs=pair_classes(np.array(rewards), known),
    )


def drift(reward: float, quality: float | None, seed: int = 0, domain: str = "d") -> list[Group]:
    """A window in which mean reward and quality move by so much, with noise."""
    rng = np.random.default_rng(seed)
    groups = []
    for step in range(STEPS):
        share = step / STEPS
        rewards = np.clip(0.4 + reward * share + rng.normal(0, 0.1, 8), 0.01, 0.99)
        level = None if quality is None else np.clip(0.5 + quality * share + rng.normal(0, 0.1, 8), 0, 1)
        groups.append(group(step, rewards, [None] * 8 if level is None else list(level), domain))
    return groups


def kinds(found: list[Alarm]) -> set[tuple[str, str]]:
    return {(alarm.kind, alarm.where) for alarm in found}


def test_reward_up_and_quality_down_is_hacking() -> None:
    found = alarms(drift(0.4, -0.4), KNOWN)
    assert kinds(found) == {("hacking", "run"), ("hacking", "d")}
    assert "reward rose from" in found[0].sentence and "quality fell from" in found[0].sentence


@pytest.mark.parametrize(
    ("reward", "quality"), [(0.4, 0.4), (0.4, 0.0), (0.0, -0.4), (-0.4, -0.4), (0.0, 0.0), (0.4, None)]
)
def test_nothing_else_is(reward: float, quality: float | None) -> None:
    assert not kinds(alarms(drift(reward, quality), KNOWN))


def test_noise_alone_hardly_ever_raises_one() -> None:
    assert sum(bool(alarms(drift(0.0, 0.0, seed), KNOWN)) for seed in range(100)) <= 2


def test_hacking_of_one_domain_is_told_of_that_domain() -> None:
    found = alarms([*drift(0.4, -0.4, domain="a"), *drift(0.4, 0.6, domain="b")], KNOWN)
    assert ("hacking", "a") in kinds(found) and ("hacking", "b") not in kinds(found)


@pytest.mark.parametrize(("score", "says"), [(1.0, "earns everything"), (0.0, "none earns anything")])
def test_collapse_at_either_end(score: float, says: str) -> None:
    tied = [group(step, [score] * 8, [0.1 * i for i in range(8)]) for step in range(STEPS)]
    found = alarms(tied, KNOWN)
    assert kinds(found) == {("collapse", "run"), ("collapse", "d")}
    assert says in found[0].sentence


def test_a_few_collapsed_groups_are_none() -> None:
    groups = drift(0.0, 0.0)
    groups[-3:] = [group(step, [1.0] * 8, [0.5] * 8) for step in range(STEPS - 3, STEPS)]
    assert not kinds(alarms(groups, KNOWN))


def test_with_few_groups_nothing_is_said() -> None:
    assert alarms([], KNOWN) == []
    tied = [group(step, [1.0] * 8, [0.5] * 8) for step in range(MIN_GROUPS - 1)]
    assert alarms(tied, KNOWN) == []


@pytest.mark.parametrize(
    ("name", "met"), [("good", [True] * 4 + [False] * 4), ("bad", [False] * 4 + [True] * 4)]
)
def test_a_criterion_that_pays_for_the_worse_response(name: str, met: list[bool]) -> None:
    worse_first = [0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9]
    rewards = [0.6, 0.6, 0.6, 0.6, 0.4, 0.4, 0.4, 0.4]
    groups = [group(step, rewards, worse_first, **{name: met}) for step in range(5)]
    found = alarms(groups, KNOWN)
    assert kinds(found) == {("criterion", KNOWN_IDS[name])}
    assert "80 of 80 pairs" in found[0].sentence and KNOWN[KNOWN_IDS[name]].text in found[0].sentence
    better_first = [1 - q for q in worse_first]
    assert not alarms([group(s, rewards, better_first, **{name: met}) for s in range(5)], KNOWN)


# --- hacking of a criterion -------------------------------------------------------------------------

MANY = [Criterion(text=f"It has feature {n}.", points=1 + n) for n in range(6)]
KNOWN_MANY = KNOWN | {c.id: c for c in MANY}


def gamed(
    criteria: Sequence[Criterion],
    quality: float | None,
    rise: float = 0.5,
    domain: str = "d",
    seed: int = 0,
    reward: Callable[[int], float] = lambda step: 0.4,
) -> list[Group]:
    """A window in which ever more responses earn what `criteria` pay, and quality moves by so much."""
    rng = np.random.default_rng(seed)
    groups = []
    for step in range(STEPS):
        share = step / STEPS
        level = None if quality is None else np.clip(0.5 + quality * share + rng.normal(0, 0.1, 8), 0, 1)
        known = [None] * 8 if level is None else list(level)
        made = group(step, np.clip(reward(step) + rng.normal(0, 0.1, 8), 0.01, 0.99), known, domain)
        met = {c.id: rng.random(8) < 0.2 + rise * share for c in criteria}
        earned = {c.id: [bool(v) == (c.points > 0) for v in met[c.id]] for c in criteria}
        groups.append(made.model_copy(update={"met": earned}))
    return groups


@pytest.mark.parametrize(
    ("criterion", "says"), [(GOOD, "is met by more responses"), (BAD, "is run into by fewer responses")]
)
def test_a_criterion_earned_more_while_quality_falls_is_hacked(criterion: Criterion, says: str) -> None:
    """... although the whole reward stands still."""
    found = alarms(gamed([criterion], -0.4), KNOWN)
    assert kinds(found) == {("hacking", criterion.id)}
    assert says in found[0].sentence and repr(criterion.text) in found[0].sentence
    assert "quality of the same groups fell from" in found[0].sentence
    before, after = (int(share) for share in re.findall(r"(\d+)%", found[0].sentence))
    assert before < after - 10 if criterion is GOOD else after < before - 10


@pytest.mark.parametrize(
    ("rise", "quality"), [(0.5, 0.4), (0.5, 0.0), (0.5, None), (0.0, -0.4), (-0.2, -0.4)]
)
def test_no_other_movement_of_a_criterion_is(rise: float, quality: float | None) -> None:
    assert not alarms(gamed([GOOD], quality, rise), KNOWN)


def test_noise_alone_hardly_ever_accuses_a_criterion() -> None:
    """60 windows of 6 criteria that have nothing to do with quality."""
    raised = [
        alarm for seed in range(60) for alarm in alarms(gamed(MANY, 0.0, 0.0, seed=seed), KNOWN_MANY)
    ]
    assert sum(alarm.kind == "hacking" for alarm in raised) <= 2
    assert sum(alarm.kind == "criterion" for alarm in raised) <= 15


def test_a_criterion_hacked_in_one_domain_is_told_of_that_domain() -> None:
    groups = gamed([GOOD], -0.4, domain="a") + gamed([GOOD], 0.8, rise=-0.1, domain="b", seed=1)
    found = alarms(groups, KNOWN)
    assert kinds(found) == {("hacking", f"a/{GOOD.id}")}
    assert found[0].sentence.startswith("domain a, criterion")


def test_a_criterion_hacked_everywhere_is_told_once() -> None:
    groups = gamed([GOOD], -0.4, domain="a") + gamed([GOOD], -0.4, domain="b", seed=1)
    assert kinds(alarms(groups, KNOWN)) == {("hacking", GOOD.id)}


def test_the_alarm_of_the_whole_reward_names_its_criteria_and_they_get_none_of_their_own() -> None:
    groups = gamed(MANY, -0.4, reward=lambda step: 0.3 + 0.4 * step / STEPS)
    found = alarms(groups, KNOWN_MANY)
    assert kinds(found) == {("hacking", "run"), ("hacking", "d")}
    names = [c.text for c in MANY if repr(c.text) in found[0].sentence]
    assert len(names) == MOST and MANY[-1].text in names  # that of most points has risen most
    assert f" and {len(MANY) - MOST} more" in found[0].sentence


def test_a_jump_without_any_noise_is_certain() -> None:
    """Earned by none before and by all since: the halves do not vary, and the reward does not either."""
    groups = []
    for made in gamed([], -0.4):
        new = made.step >= STEPS // 2
        reward = [0.8 if new else 0.2] * 8
        groups.append(made.model_copy(update={"met": {GOOD.id: [new] * 8}, "rewards": reward}))
    whole = next(alarm for alarm in alarms(groups, KNOWN) if alarm.where == "run")
    assert whole.kind == "hacking" and f"{GOOD.text!r} (met by 0% before, 100% now)" in whole.sentence


def test_alarms_of_single_criteria_are_few() -> None:
    found = alarms(gamed(MANY, -0.4), KNOWN_MANY)
    assert len(found) == MOST and all(alarm.kind == "hacking" for alarm in found)
    assert found[0].where == MANY[-1].id
    assert found[-1].sentence.endswith(f"({len(MANY) - MOST} more like it)")


def test_a_criterion_that_was_added_lately_is_seen_by_its_own_halves() -> None:
    early = [g.model_copy(update={"met": {}, "step": g.step - STEPS}) for g in gamed([], 0.0)]
    assert kinds(alarms([*early, *gamed([GOOD], -0.4)], KNOWN)) == {("hacking", GOOD.id)}


def test_a_criterion_out_of_force_is_no_alarm() -> None:
    assert not alarms(gamed([GOOD], -0.4), {})
