"""What followed an unmeasured change: which groups count, before and after, and when nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from harnessrl.agents.evolver.observed import Observed, observe
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Group
from harnessrl.specs.updates import Add, Boost, Mount, Retire, Update
from scripted import group_record, make_decision, make_task, says

TASK, OTHER = make_task("t"), make_task("u")
QUALITY = [0.1, 0.2, 0.3, 0.4]
#: Of the six pairs of a group all are informative, half are, none is; and no pair can carry a signal.
GOOD, HALF, BAD, NEUTRAL = [0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.1, 0.4], [0.4, 0.3, 0.2, 0.1], [0.5] * 4

ADD = Add(task_ids=("t",), rationale="", criterion=says("beta"))


def group(step: int, rewards: Sequence[float | None], task: Any = TASK, **more: Any) -> Group:
    quality = [0.5] * 4 if rewards is NEUTRAL else QUALITY
    return group_record(task, rewards, quality, step).model_copy(update=more)


def in_force(step: int, *decisions: Decision, **more: Any) -> Accepted:
    """A version that acts from the step after `step` on."""
    return Accepted(
        id=f"h-{step}",
        step=step,
        harness_version=1,
        decision_ids=[d.id for d in decisions],
        updates=[d.update for d in decisions],
        **more,
    )


def changed(update: Update, step: int) -> Accepted:
    return in_force(step, make_decision(update, gain=None, accepted=True, step=step, revision=9))


MADE = make_decision(ADD, gain=None, accepted=True, step=3)


def seen(
    records: Sequence[AnyRecord],
    decision: Decision = MADE,
    step: int = 20,
    horizon: int = 8,
    least: int = 1,
    task_id: str = "t",
) -> Observed | None:
    groups = [r for r in records if isinstance(r, Group) and r.task_id == task_id]
    accepted = [r for r in records if isinstance(r, Accepted)]
    return observe(decision, task_id, groups, accepted, step, horizon, least)


def test_the_signal_rate_before_and_after() -> None:
    # Asked for after step 3, applied after step 4: beside training the two differ.
    records = [group(3, BAD), group(4, GOOD), in_force(4, MADE), group(5, GOOD), group(6, GOOD)]
    found = seen(records)
    assert found == Observed(0.5, 1.0, (2, 2))
    assert found.gain == 0.5
    assert str(found) == "signal rate 0.50 -> 1.00 over 2 and 2 groups"


def test_pairs_are_pooled_not_rates() -> None:
    """Of HALF three pairs are informative and three tie inside a group that spreads, which is no loss."""
    half = group(4, [0.1, 0.1, 0.1, 0.4])
    assert half.pairs["informative"] == 3 and half.pairs["blind_spread"] == 3
    found = seen([half, group(3, BAD), in_force(4, MADE), group(5, GOOD)])
    assert found is not None and found.before == pytest.approx(3 / 9)


def test_only_the_horizon_counts() -> None:
    records = [group(2, BAD), group(3, GOOD), in_force(4, MADE), group(6, GOOD), group(7, BAD)]
    assert seen(records, horizon=2) == Observed(1.0, 1.0, (1, 1))
    assert seen(records, horizon=3) == Observed(0.5, 0.5, (2, 2))


def test_what_came_after_the_step_in_question_is_not_known_yet() -> None:
    records = [group(3, GOOD), in_force(4, MADE), group(5, GOOD), group(6, BAD)]
    assert seen(records, step=5) == Observed(1.0, 1.0, (1, 1))
    assert seen(records, step=6) == Observed(1.0, 0.5, (1, 2))
    assert seen(records, step=4) is None


@pytest.mark.parametrize(
    "between",
    [
        Add(task_ids=("t",), rationale="", criterion=says("gamma")),
        Mount(task_ids=("u", "t"), rationale="", lines=("a",), share=0.5),
    ],
    ids=lambda u: u.op,
)
def test_another_change_of_the_task_ends_what_is_counted(between: Update) -> None:
    records = [
        *(group(1, BAD), changed(between, 1), group(2, GOOD)),
        *(in_force(2, MADE), group(3, GOOD), changed(between, 3), group(4, BAD)),
    ]
    assert seen(records) == Observed(1.0, 1.0, (1, 1))


def test_a_rollback_ends_it_too() -> None:
    back = in_force(3, rolled_back_to=0)
    records = [group(2, GOOD), in_force(2, MADE), group(3, BAD), back, group(4, GOOD)]
    assert seen(records) == Observed(1.0, 0.0, (1, 1))


def test_two_changes_that_came_into_force_together_are_not_told_apart() -> None:
    records = [group(2, GOOD), changed(ADD, 2), in_force(2, MADE), group(3, BAD)]
    assert seen(records) is None


@pytest.mark.parametrize(
    "beside",
    [
        Boost(task_ids=("t",), rationale="", factor=2.0),
        Retire(task_ids=("u",), rationale="", criterion_id="c-x"),
    ],
    ids=["p", "another task"],
)
def test_other_changes_do_not(beside: Update) -> None:
    records = [group(2, GOOD), in_force(2, MADE), group(3, GOOD), changed(beside, 3), group(4, BAD)]
    assert seen(records) == Observed(1.0, 0.5, (1, 2))


def test_groups_of_other_tasks_do_not_count() -> None:
    records = [group(2, GOOD), in_force(2, MADE), group(3, GOOD), group(4, BAD, OTHER)]
    assert seen(records) == Observed(1.0, 1.0, (1, 1))


def test_only_unguided_rollouts_count() -> None:
    """The guided ones turn the order round; what is left says nothing against the change."""
    mixed = group(3, [0.4, 0.1, 0.2, 0.3], guided=[True, False, False, False])
    assert mixed.pairs["inversion"] == 3
    assert seen([group(2, GOOD), in_force(2, MADE), mixed]) == Observed(1.0, 1.0, (1, 1))
    alone = group(3, GOOD, guided=[True, True, True, False])
    assert seen([group(2, GOOD), in_force(2, MADE), alone]) is None


def test_groups_that_can_carry_no_signal_are_no_evidence() -> None:
    unscored: list[float | None] = [None] * 4
    records = [group(2, GOOD), in_force(2, MADE), group(3, NEUTRAL), group(4, unscored), group(5, BAD)]
    assert seen(records, step=4) is None
    assert seen(records) == Observed(1.0, 0.0, (1, 1))


def test_each_side_needs_its_groups() -> None:
    records = [group(1, GOOD), group(2, GOOD), in_force(2, MADE), group(3, BAD), group(4, BAD)]
    assert seen(records, least=2) is not None
    assert seen(records, step=3, least=2) is None
    assert seen(records[1:], least=2) is None


def test_what_was_measured_or_never_applied_or_draws_only_is_not_observed() -> None:
    def records(made: Decision) -> list[AnyRecord]:
        return [group(2, GOOD), in_force(2, made), group(3, BAD)]

    assert seen(records(MADE)) is not None
    measured = make_decision(ADD, gain=0.2, accepted=True)
    assert seen(records(measured), measured) is None
    pause = make_decision(Boost(task_ids=("t",), rationale="", factor=2.0), gain=None, accepted=True)
    assert seen(records(pause), pause) is None
    refused = make_decision(ADD, gain=None, step=7)
    assert seen(records(MADE), refused) is None
