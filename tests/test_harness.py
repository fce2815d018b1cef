"""The harness state: updates, their errors, the fold, and that held-out tasks stay out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from harnessrl.agents.evolver.critic import Critic
from harnessrl.memory.events import EventLog, read_log
from harnessrl.memory.records import Accepted
from harnessrl.specs.harness import Guidance, HarnessState, TaskHarness, UpdateError, apply
from harnessrl.specs.tasks import HeldOutTask, Task, TaskFile, TrainTask
from harnessrl.specs.updates import (
    UPDATE,
    Add,
    Boost,
    Mount,
    Pause,
    Restore,
    Resume,
    Retire,
    Unmount,
    Update,
    describe,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted import harness_of, make_task, says

ALPHA, BETA, GAMMA = says("alpha"), says("beta", 2.0), says("gamma", -1.0)
SEED = harness_of(make_task("a", rubric=[ALPHA, BETA]), make_task("b"))


def on(kind: type[Any], *tasks: str, **fields: Any) -> Any:
    return kind(task_ids=tasks or ("a",), rationale="because", **fields)


ADD = on(Add, criterion=GAMMA)
RETIRE_BETA = on(Retire, criterion_id=BETA.id)
MOUNT = on(Mount, checklist=("x", "y"), share=0.5)


# --- applying ------------------------------------------------------------------------------------


def test_the_seed_harness_changes_nothing() -> None:
    assert SEED.version == 0
    assert SEED.of("a") == TaskHarness()
    assert SEED.rubric("a") == SEED.all_criteria("a") == (ALPHA, BETA)
    assert SEED.weight("a", 0.1) == 1.0
    assert SEED.export() == {"version": 0, "tasks": {}}


def test_a_batch_is_one_version() -> None:
    first = apply(SEED, [ADD, MOUNT, on(Boost, "a", "b", factor=2.0)])
    assert first.version == 1
    assert apply(first, [on(Pause, "b")]).version == 2
    assert first.rubric("a") == (ALPHA, BETA, GAMMA)
    assert first.of("a").guidance == Guidance(("x", "y"), 0.5)
    assert (first.of("a").boost, first.of("b").boost) == (2.0, 2.0)
    assert first.rubric("b") == (ALPHA,)


def test_updates_of_a_batch_build_on_each_other() -> None:
    state = apply(SEED, [ADD, on(Retire, criterion_id=GAMMA.id), RETIRE_BETA, MOUNT, on(Unmount)])
    assert state.rubric("a") == (ALPHA,)
    assert state.of("a").guidance is None


def test_applying_is_pure() -> None:
    changed = apply(SEED, [ADD, RETIRE_BETA, MOUNT])
    before = (dict(SEED.changes), dict(changed.changes), changed.export())
    apply(changed, [on(Restore, criterion_id=BETA.id), on(Unmount), on(Pause, "b")])
    with pytest.raises(UpdateError):
        apply(changed, [on(Pause, "b"), on(Pause, "b")])
    assert (dict(SEED.changes), dict(changed.changes), changed.export()) == before
    assert SEED.version == 0 and changed.version == 1


def test_the_state_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SEED.version = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        ADD.rationale = "other"


def test_criteria_are_retired_never_erased() -> None:
    retired = apply(SEED, [RETIRE_BETA])
    assert retired.rubric("a") == (ALPHA,)
    assert retired.all_criteria("a") == (ALPHA, BETA)
    assert apply(retired, [on(Restore, criterion_id=BETA.id)]).rubric("a") == (ALPHA, BETA)
    added = apply(SEED, [ADD])
    gone = apply(added, [on(Retire, criterion_id=GAMMA.id)])
    assert gone.all_criteria("a") == (ALPHA, BETA, GAMMA)
    assert apply(gone, [on(Restore, criterion_id=GAMMA.id)]).rubric("a") == (ALPHA, BETA, GAMMA)
    both = apply(gone, [RETIRE_BETA])
    assert apply(both, [on(Restore, criterion_id=GAMMA.id)]).rubric("a") == (ALPHA, GAMMA)


def test_weights() -> None:
    boosted = apply(SEED, [on(Boost, factor=2.0), on(Boost, factor=3.0)])
    assert boosted.weight("a", 0.1) == 6.0
    paused = apply(boosted, [on(Pause)])
    assert paused.weight("a", 0.1) == 0.1  # the floor, whatever the boost was
    assert apply(paused, [on(Resume)]).weight("a", 0.1) == 6.0


def test_mounting_replaces_what_was_mounted() -> None:
    state = apply(SEED, [MOUNT, on(Mount, checklist=("z",), share=0.25)])
    assert state.of("a").guidance == Guidance(("z",), 0.25)


@pytest.mark.parametrize(
    ("before", "update", "message"),
    [
        ([], on(Pause, "nowhere"), "no training task 'nowhere'"),
        ([], on(Boost, "a", "nowhere", factor=2.0), "no training task 'nowhere'"),
        ([on(Pause)], on(Pause), "a is paused already"),
        ([], on(Resume), "a is not paused"),
        ([on(Pause), on(Resume)], on(Resume), "a is not paused"),
        ([], on(Unmount), "a carries no guidance"),
        ([MOUNT, on(Unmount)], on(Unmount), "a carries no guidance"),
        ([], on(Add, criterion=ALPHA), f"a has criterion {ALPHA.id} already"),
        ([ADD], ADD, f"a has criterion {GAMMA.id} already"),
        ([RETIRE_BETA], on(Add, criterion=BETA), f"a has criterion {BETA.id} already"),
        ([], on(Retire, criterion_id="c-0"), "c-0 is not scored on a"),
        ([], on(Retire, criterion_id=GAMMA.id), f"{GAMMA.id} is not scored on a"),
        ([RETIRE_BETA], RETIRE_BETA, f"{BETA.id} is not scored on a"),
        ([], on(Retire, "b", criterion_id=ALPHA.id), f"{ALPHA.id} is the last criterion of b"),
        ([RETIRE_BETA], on(Retire, criterion_id=ALPHA.id), f"{ALPHA.id} is the last criterion of a"),
        ([], on(Restore, criterion_id=BETA.id), f"{BETA.id} is not retired on a"),
    ],
)
def test_what_cannot_be_applied_says_why(before: list[Update], update: Update, message: str) -> None:
    state = apply(SEED, before)
    export = state.export()
    with pytest.raises(UpdateError, match=message) as error:
        apply(state, [update])
    assert str(error.value).startswith(f"{update.op}: ")
    assert state.export() == export
    with pytest.raises(UpdateError):  # and a batch goes in whole or not at all
        apply(state, [on(Boost, factor=2.0), update])
    assert state.export() == export


# --- the fold ------------------------------------------------------------------------------------

CRITERIA = [ALPHA, BETA, GAMMA, says("delta")]
any_update = st.one_of(
    st.builds(lambda t: on(Pause, t), st.sampled_from("ab")),
    st.builds(lambda t: on(Resume, t), st.sampled_from("ab")),
    st.builds(lambda t, f: on(Boost, t, factor=f), st.sampled_from("ab"), st.floats(1.1, 10)),
    st.builds(lambda t: on(Mount, t, checklist=("x",), share=0.5), st.sampled_from("ab")),
    st.builds(lambda t: on(Unmount, t), st.sampled_from("ab")),
    st.builds(lambda t, c: on(Add, t, criterion=c), st.sampled_from("ab"), st.sampled_from(CRITERIA)),
    st.builds(
        lambda k, t, c: on(k, t, criterion_id=c.id),
        st.sampled_from([Retire, Restore]),
        st.sampled_from("ab"),
        st.sampled_from(CRITERIA),
    ),
)


@given(st.lists(any_update, max_size=25))
def test_the_harness_is_the_fold_of_its_accepted_updates(updates: list[Update]) -> None:
    """Whatever was applied, in whatever batches: replaying the log from the seed gives it again."""
    state, accepted = SEED, []
    for update in updates:
        try:
            state = apply(state, [update])
        except UpdateError:
            continue
        accepted.append(update.model_dump_json())
        # Invariants: something is always scored, everything stays on record, weights are positive.
        for task in "ab":
            assert state.rubric(task) and set(state.rubric(task)) <= set(state.all_criteria(task))
            assert set(SEED.rubric(task)) <= set(state.all_criteria(task))
            assert state.weight(task, 0.1) > 0
    replayed = SEED
    for line in accepted:
        replayed = apply(replayed, [UPDATE.validate_json(line)])
    assert replayed == state
    assert state.version == len(accepted)


def test_the_fold_over_a_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    batches: list[list[Update]] = [[ADD, MOUNT], [RETIRE_BETA], [on(Unmount), on(Pause, "b")]]
    state = SEED
    for step, batch in enumerate(batches):
        state = apply(state, batch)
        version = state.version
        log.append(
            [
                Accepted(
                    id=f"h-{version}",
                    step=step,
                    harness_version=version,
                    decision_ids=[],
                    updates=batch,
                )
            ]
        )
    replayed = SEED
    for record in read_log(log.path):
        assert isinstance(record, Accepted)
        replayed = apply(replayed, record.updates)
        assert replayed.version == record.harness_version
    assert replayed == state


def test_the_export_is_plain_data() -> None:
    state = apply(SEED, [ADD, RETIRE_BETA, MOUNT, on(Boost, "b", factor=2.0)])
    export = state.export()
    assert json.loads(json.dumps(export)) == export
    assert export["version"] == 1 and list(export["tasks"]) == ["a", "b"]
    assert export["tasks"]["a"]["g"] == {"checklist": ["x", "y"], "share": 0.5}
    assert export["tasks"]["a"]["c"]["retired"] == [BETA.id]
    (added,) = export["tasks"]["a"]["c"]["added"]
    assert (added["text"], added["points"]) == ("The response says gamma.", -1.0)
    assert export["tasks"]["b"] == {
        "p": {"boost": 2.0, "paused": False},
        "g": None,
        "c": {"added": [], "retired": []},
    }


# --- updates as data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Boost, {"factor": 1.0}),
        (Boost, {"factor": 11.0}),
        (Boost, {"factor": float("nan")}),
        (Mount, {"checklist": (), "share": 0.5}),
        (Mount, {"checklist": ("x",), "share": 1.0}),  # some rollouts always stay unguided
        (Mount, {"checklist": ("x",), "share": 0.0}),
        (Pause, {"reason": "x"}),
        (Pause, {"interface": "g"}),
    ],
)
def test_updates_are_checked(kind: type[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        on(kind, **fields)
    with pytest.raises(ValidationError):
        Pause(task_ids=(), rationale="")


EVERY: list[Update] = [
    on(Boost, factor=2.0),
    on(Pause),
    on(Resume),
    MOUNT,
    on(Unmount),
    ADD,
    RETIRE_BETA,
    on(Restore, criterion_id=BETA.id),
]


@pytest.mark.parametrize("update", EVERY, ids=lambda u: u.op)
def test_an_update_survives_json_and_can_be_described(update: Update) -> None:
    assert UPDATE.validate_json(update.model_dump_json()) == update
    assert UPDATE.validate_python(update.model_dump(mode="json")) == update
    line = describe(update)
    assert line.startswith(f"{update.interface} {update.op}") and "(a)" in line
    assert "because" not in line and "\n" not in line


# --- held-out tasks ------------------------------------------------------------------------------

HELD = HeldOutTask(id="h", domain="d", prompt="Secret.", rubric=(ALPHA,))


def test_a_held_out_task_is_no_training_task() -> None:
    assert not issubclass(HeldOutTask, TrainTask) and not issubclass(TrainTask, HeldOutTask)
    assert issubclass(HeldOutTask, Task) and issubclass(TrainTask, Task)
    with pytest.raises(ValidationError):
        TaskFile(train=(HELD,))  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        TaskFile(held_out=(make_task("t"),))  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        TaskFile.model_validate({"train": [HELD]})


def test_the_harness_asks_for_training_tasks() -> None:
    tasks = get_type_hints(HarnessState)["tasks"]
    assert get_args(tasks) == (str, TrainTask) and issubclass(tasks.__origin__, Mapping)
    assert get_type_hints(Critic.judge)["harness"] is HarnessState


@pytest.mark.parametrize("update", EVERY, ids=lambda u: u.op)
def test_no_update_reaches_a_held_out_task(update: Update) -> None:
    aimed = update.model_copy(update={"task_ids": ("a", HELD.id)})
    with pytest.raises(UpdateError):
        apply(SEED, [aimed])
