"""Alarms: what raises each of them, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from harnessrl.agents.scoring.alarms import MIN_GROUPS, Alarm, alarms
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
