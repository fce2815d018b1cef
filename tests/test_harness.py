"""The harness state: updates, their errors, the fold, and that held-out tasks stay out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from harnessrl.agents.evolver.critic import Critic
from harnessrl.memory.events import EventLog, fold_versions, read_log
from harnessrl.memory.records import Accepted
from harnessrl.specs.guidance import Guidance, LinearFade, SigmoidFade, SuccessFade
from harnessrl.specs.harness import (
    Evolved,
    HarnessState,
    TaskHarness,
    UpdateError,
    apply,
    diff,
    roll_back,
)
from harnessrl.specs.harnessfile import HarnessFile, begin_with, from_file, to_file
from harnessrl.specs.loader import dump_yaml, load_harness_file
from harnessrl.specs.tasks import Criterion, HeldOutTask, Task, TaskFile, TrainTask
from harnessrl.specs.updates import (
    UPDATE,
    Add,
    Boost,
    Dampen,
    Edit,
    Gate,
    GuidanceUpdate,
    Merge,
    Mount,
    Pause,
    Restore,
    Resume,
    Retire,
    Reweight,
    Rewrite,
    RubricUpdate,
    SamplingUpdate,
    SetFade,
    Split,
    Unmount,
    Update,
    brought_in,
    describe,
    replaced,
    resolve,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted import harness_of, make_task, says

ALPHA, BETA, GAMMA = says("alpha"), says("beta", 2.0), says("gamma", -1.0)
DELTA, EPSILON, BEST, WORST = says("delta"), says("epsilon"), says("best"), says("worst", -2.0)
SEED = harness_of(make_task("a", rubric=[ALPHA, BETA]), make_task("b"))


def on(kind: type[Any], *tasks: str, **fields: Any) -> Any:
    return kind(**{"task_ids": tasks or ("a",), "rationale": "because"} | fields)


def rewrite(old: Criterion, new: Criterion) -> Rewrite:
    return on(Rewrite, criterion_id=old.id, criterion=new)


def split(old: Criterion, *new: Criterion) -> Split:
    return on(Split, criterion_id=old.id, criteria=new)


def merge(new: Criterion, *old: Criterion) -> Merge:
    return on(Merge, criterion_ids=tuple(criterion.id for criterion in old), criterion=new)


ADD = on(Add, criterion=GAMMA)
RETIRE_BETA = on(Retire, criterion_id=BETA.id)
MOUNT = on(Mount, lines=("x", "y"), share=0.5)
LINEAR = LinearFade(kind="linear", steps=5)


# --- applying ------------------------------------------------------------------------------------


def test_the_seed_harness_changes_nothing() -> None:
    assert SEED.version == 0
    assert SEED.of("a") == TaskHarness()
    assert SEED.rubric("a") == SEED.all_criteria("a") == (ALPHA, BETA)
    assert SEED.weight("a", 0.1) == 1.0
    assert to_file(SEED) == HarnessFile()


def test_a_batch_is_one_version() -> None:
    first = apply(SEED, [ADD, MOUNT, on(Boost, "a", "b", factor=2.0)])
    assert first.version == 1
    assert apply(first, [on(Pause, "b")]).version == 2
    assert first.rubric("a") == (ALPHA, BETA, GAMMA)
    assert first.of("a").guidance == (Guidance("checklist", ("x", "y"), 0.5),)
    assert (first.of("a").boost, first.of("b").boost) == (2.0, 2.0)
    assert first.rubric("b") == (ALPHA,)


def test_updates_of_a_batch_build_on_each_other() -> None:
    state = apply(SEED, [ADD, on(Retire, criterion_id=GAMMA.id), RETIRE_BETA, MOUNT, on(Unmount)])
    assert state.rubric("a") == (ALPHA,)
    assert state.of("a").guidance == ()


def test_applying_is_pure() -> None:
    changed = apply(SEED, [ADD, RETIRE_BETA, MOUNT])
    before = (dict(SEED.changes), dict(changed.changes), to_file(changed))
    apply(changed, [on(Restore, criterion_id=BETA.id), on(Unmount), on(Pause, "b")])
    apply(changed, [on(Rewrite, criterion_id=ALPHA.id, criterion=BEST), on(Edit, lines=("z",))])
    with pytest.raises(UpdateError):
        apply(changed, [on(Pause, "b"), on(Pause, "b")])
    assert (dict(SEED.changes), dict(changed.changes), to_file(changed)) == before
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
    state = apply(SEED, [MOUNT, on(Mount, lines=("z",), share=0.25)])
    assert state.of("a").guidance == (Guidance("checklist", ("z",), 0.25),)


@pytest.mark.parametrize(
    ("before", "update", "message"),
    [
        ([], on(Pause, "nowhere"), "no training task 'nowhere'"),
        ([], on(Boost, "a", "nowhere", factor=2.0), "no training task 'nowhere'"),
        ([on(Pause)], on(Pause), "a is paused already"),
        ([], on(Resume), "a is not paused"),
        ([on(Pause), on(Resume)], on(Resume), "a is not paused"),
        ([], on(Unmount), "a carries no checklist; it carries no guidance"),
        ([MOUNT, on(Unmount)], on(Unmount), "a carries no checklist; it carries no guidance"),
        ([MOUNT], on(Unmount, field="skill"), "a carries no skill; it carries checklist"),
        ([], on(Edit, lines=("z",)), "a carries no checklist"),
        ([MOUNT], on(SetFade, field="outline", fade=LINEAR), "a carries no outline"),
        ([], on(Add, criterion=ALPHA), f"a has criterion {ALPHA.id} already"),
        ([ADD], ADD, f"a has criterion {GAMMA.id} already"),
        ([RETIRE_BETA], on(Add, criterion=BETA), f"a has criterion {BETA.id} already"),
        ([], on(Retire, criterion_id="c-0"), "c-0 is not scored on a"),
        ([], on(Retire, criterion_id=GAMMA.id), f"{GAMMA.id} is not scored on a"),
        ([RETIRE_BETA], RETIRE_BETA, f"{BETA.id} is not scored on a"),
        ([], on(Retire, "b", criterion_id=ALPHA.id), f"{ALPHA.id} is the last criterion of b"),
        ([RETIRE_BETA], on(Retire, criterion_id=ALPHA.id), f"{ALPHA.id} is the last criterion of a"),
        ([], on(Restore, criterion_id=BETA.id), f"{BETA.id} is not retired on a"),
        ([], rewrite(GAMMA, BEST), f"{GAMMA.id} is not scored on a; it has {ALPHA.id}, {BETA.id}"),
        ([], rewrite(ALPHA, ALPHA), f"{ALPHA.id} of a is just that already"),
        ([], rewrite(ALPHA, BETA), f"a has criterion {BETA.id} already"),
        ([], split(GAMMA, BEST, ALPHA), f"{GAMMA.id} is not scored on a"),
        ([], split(ALPHA, BEST, ALPHA), f"{ALPHA.id} of a is just that already"),
        ([], split(ALPHA, BEST, BEST), f"a has criterion {BEST.id} already"),
        ([], merge(BEST, ALPHA, GAMMA), f"{GAMMA.id} is not scored on a"),
        ([RETIRE_BETA], merge(BEST, ALPHA, BETA), f"{BETA.id} is not scored on a"),
        ([], merge(ALPHA, ALPHA, BETA), f"{ALPHA.id} of a is just that already"),
        ([], on(Reweight, criterion_id=GAMMA.id, points=1.0), f"{GAMMA.id} is not scored on a"),
        ([], on(Reweight, criterion_id=ALPHA.id, points=1.0), f"{ALPHA.id} of a is just that already"),
        ([], on(Reweight, criterion_id=ALPHA.id, points=-1.0), "-1 points for"),
        ([], on(Reweight, criterion_id=ALPHA.id, points=-1.0), "which has +1; allowed: the same sign"),
        ([ADD], on(Reweight, criterion_id=GAMMA.id, points=2.0), "which has -1; allowed: the same sign"),
        ([], on(Gate, criterion_id=GAMMA.id, cap=0.5), f"{GAMMA.id} is not scored on a"),
        ([], on(Gate, criterion_id=ALPHA.id, cap=None), f"{ALPHA.id} of a is just that already"),
    ],
)
def test_what_cannot_be_applied_says_why(before: list[Update], update: Update, message: str) -> None:
    state = apply(SEED, before)
    content = to_file(state)
    with pytest.raises(UpdateError, match=re.escape(message)) as error:
        apply(state, [update])
    assert str(error.value).startswith(f"{update.op}: ")
    assert to_file(state) == content
    with pytest.raises(UpdateError):  # and a batch goes in whole or not at all
        apply(state, [on(Boost, factor=2.0), update])
    assert to_file(state) == content


# --- guidance fields -----------------------------------------------------------------------------


def test_a_task_carries_one_of_each_guidance_field_in_a_fixed_order() -> None:
    skill = on(Mount, field="skill", lines=("s",), share="ramp", fade=SuccessFade(kind="success"))
    state = apply(SEED, [skill, MOUNT, on(Mount, field="outline", lines="rubric", share=0.5)])
    assert [g.field for g in state.of("a").guidance] == ["checklist", "outline", "skill"]
    mounted = state.of("a").field("skill")
    assert mounted == Guidance("skill", ("s",), "ramp", SuccessFade(kind="success"))
    assert state.of("a").field("pitfalls") is None
    fewer = apply(state, [on(Unmount, field="outline")])
    assert [g.field for g in fewer.of("a").guidance] == ["checklist", "skill"]


def test_an_edit_changes_the_lines_and_nothing_else() -> None:
    state = apply(SEED, [on(Mount, lines=("x",), share=0.25, fade=LINEAR)], after_step=3)
    edited = apply(state, [on(Edit, lines=("y", "z"))], after_step=9)
    assert edited.of("a").guidance == (Guidance("checklist", ("y", "z"), 0.25, LINEAR, since=4),)


def test_a_fade_counts_from_the_step_it_acts_from() -> None:
    mounted = apply(SEED, [MOUNT], after_step=3)
    assert mounted.of("a").guidance == (Guidance("checklist", ("x", "y"), 0.5, None, since=4),)
    fading = apply(mounted, [on(SetFade, fade=LINEAR)], after_step=9)
    assert fading.of("a").guidance == (Guidance("checklist", ("x", "y"), 0.5, LINEAR, since=10),)


def test_what_every_task_starts_with_can_be_changed_task_by_task() -> None:
    start = TaskHarness(guidance=(Guidance("pitfalls", ("p",), 0.5),))
    seed = dataclasses.replace(SEED, start=start)
    assert seed.of("a") == seed.of("b") == start
    state = apply(seed, [on(Unmount, field="pitfalls"), on(Boost, "b", factor=2.0)])
    assert state.of("a").guidance == ()
    assert state.of("b").guidance == start.guidance and state.of("b").boost == 2.0


# --- criteria and where they come from -----------------------------------------------------------


def test_added_criteria_remember_what_made_them() -> None:
    state = apply(SEED, [ADD])
    state = apply(state, [split(ALPHA, BEST, WORST)])
    assert state.of("a").added == (
        Evolved(GAMMA, "add", (), 1),
        Evolved(BEST, "split", (ALPHA.id,), 2),
        Evolved(WORST, "split", (ALPHA.id,), 2),
    )
    assert state.rubric("a") == (BETA, GAMMA, BEST, WORST)
    rewritten = apply(state, [rewrite(WORST, DELTA)])
    assert rewritten.of("a").added[-1] == Evolved(DELTA, "rewrite", (WORST.id,), 3)
    assert rewritten.rubric("a") == (BETA, GAMMA, BEST, DELTA)
    one = apply(rewritten, [merge(EPSILON, BETA, BEST, DELTA)])
    assert one.of("a").added[-1] == Evolved(EPSILON, "merge", (BETA.id, BEST.id, DELTA.id), 4)
    assert one.rubric("a") == (GAMMA, EPSILON)
    assert set(one.all_criteria("a")) == {ALPHA, BETA, GAMMA, BEST, WORST, DELTA, EPSILON}
    assert apply(one, [on(Restore, criterion_id=ALPHA.id)]).rubric("a") == (ALPHA, GAMMA, EPSILON)


def test_other_points_make_another_criterion() -> None:
    state = apply(SEED, [on(Reweight, criterion_id=BETA.id, points=5.0)])
    heavy = says("beta", 5.0)
    assert state.rubric("a") == (ALPHA, heavy)
    assert state.of("a").added == (Evolved(heavy, "reweight", (BETA.id,), 1),)
    assert state.of("a").retired == {BETA.id}
    negative = apply(SEED, [ADD, on(Reweight, criterion_id=GAMMA.id, points=-3.0)])
    assert negative.rubric("a") == (ALPHA, BETA, says("gamma", -3.0))


def test_a_gate_can_be_set_and_taken_off() -> None:
    gated = apply(SEED, [on(Gate, criterion_id=BETA.id, cap=0.25)])
    (alpha, beta) = gated.rubric("a")
    assert alpha == ALPHA and beta == BETA.model_copy(update={"gate": 0.25})
    assert beta.id != BETA.id
    assert gated.of("a").added == (Evolved(beta, "gate", (BETA.id,), 1),)
    assert apply(gated, [on(Gate, criterion_id=beta.id, cap=None)]).rubric("a") == (ALPHA, BETA)


def test_what_was_scored_once_comes_back_as_itself() -> None:
    """Changing a criterion back brings back the retired one, with its old verdicts on record."""
    state = apply(SEED, [on(Reweight, criterion_id=BETA.id, points=5.0)])
    back = apply(state, [on(Reweight, criterion_id=says("beta", 5.0).id, points=2.0)])
    assert back.rubric("a") == (ALPHA, BETA)
    assert len(back.of("a").added) == 1 and back.of("a").retired == {says("beta", 5.0).id}
    assert apply(state, [rewrite(ALPHA, BETA)]).rubric("a") == (BETA, says("beta", 5.0))


def test_the_last_criterion_may_be_replaced_but_not_retired() -> None:
    state = apply(SEED, [on(Rewrite, "b", criterion_id=ALPHA.id, criterion=BEST)])
    assert state.rubric("b") == (BEST,)
    with pytest.raises(UpdateError, match="is the last criterion of b"):
        apply(state, [on(Retire, "b", criterion_id=BEST.id)])


# --- the fold ------------------------------------------------------------------------------------

CRITERIA = [ALPHA, BETA, GAMMA, DELTA]
task_ids = st.sampled_from("ab")
fields = st.sampled_from(["checklist", "skill"])
fades = st.sampled_from([None, LINEAR, SigmoidFade(kind="sigmoid"), SuccessFade(kind="success")])
lines = st.sampled_from([("x",), ("y", "z"), "rubric"])
criteria = st.sampled_from(CRITERIA)
criterion_ids = criteria.map(lambda c: c.id)
any_update = st.one_of(
    st.builds(lambda t: on(Pause, t), task_ids),
    st.builds(lambda t: on(Resume, t), task_ids),
    st.builds(lambda t, f: on(Boost, t, factor=f), task_ids, st.floats(1.1, 10)),
    st.builds(lambda t, f: on(Dampen, t, factor=f), task_ids, st.floats(0.1, 0.9)),
    st.builds(
        lambda t, f, x, s, e: on(Mount, t, field=f, lines=x, share=s, fade=e),
        task_ids,
        fields,
        lines,
        st.sampled_from([0.5, "ramp"]),
        fades,
    ),
    st.builds(lambda t, f, x: on(Edit, t, field=f, lines=x), task_ids, fields, lines),
    st.builds(lambda t, f, e: on(SetFade, t, field=f, fade=e), task_ids, fields, fades.filter(bool)),
    st.builds(lambda t, f: on(Unmount, t, field=f), task_ids, fields),
    st.builds(lambda t, c: on(Add, t, criterion=c), task_ids, criteria),
    st.builds(
        lambda k, t, c: on(k, t, criterion_id=c),
        st.sampled_from([Retire, Restore]),
        task_ids,
        criterion_ids,
    ),
    st.builds(
        lambda t, c, new: on(Rewrite, t, criterion_id=c, criterion=new),
        task_ids,
        criterion_ids,
        criteria,
    ),
    st.builds(
        lambda t, c, new: on(Split, t, criterion_id=c, criteria=tuple(new)),
        task_ids,
        criterion_ids,
        st.lists(criteria, min_size=2, max_size=3),
    ),
    st.builds(
        lambda t, cs, new: on(Merge, t, criterion_ids=tuple(cs), criterion=new),
        task_ids,
        st.lists(criterion_ids, min_size=2, max_size=3, unique=True),
        criteria,
    ),
    st.builds(
        lambda t, c, x: on(Reweight, t, criterion_id=c, points=x),
        task_ids,
        criterion_ids,
        st.sampled_from([1.0, 2.0, 3.0, -1.0, -2.0]),
    ),
    st.builds(
        lambda t, c, cap: on(Gate, t, criterion_id=c, cap=cap),
        task_ids,
        criterion_ids,
        st.sampled_from([None, 0.0, 0.5]),
    ),
)


def versions_of(updates: list[Update]) -> list[HarnessState]:
    """Every version that the updates make, one after the other; those that do not fit are left out."""
    versions = [SEED]
    for step, update in enumerate(updates):
        with contextlib.suppress(UpdateError):
            versions.append(apply(versions[-1], [update], step))
    return versions


@given(st.lists(any_update, max_size=25))
def test_the_harness_is_the_fold_of_its_accepted_updates(updates: list[Update]) -> None:
    """Whatever was applied, in whatever batches: replaying the log from the seed gives it again."""
    state, log = SEED, []
    for update in updates:
        try:
            state = apply(state, [update])
        except UpdateError:
            continue
        log.append(update.model_dump_json())
        # Invariants: something is always scored, everything stays on record, weights are positive.
        for task in "ab":
            assert state.rubric(task) and set(state.rubric(task)) <= set(state.all_criteria(task))
            assert set(SEED.rubric(task)) <= set(state.all_criteria(task))
            assert state.weight(task, 0.1) > 0
    replayed = SEED
    for line in log:
        replayed = apply(replayed, [UPDATE.validate_json(line)])
    assert replayed == state
    assert state.version == len(log)


@given(st.lists(any_update, max_size=25), st.data())
def test_rolling_back_gives_an_earlier_versions_content(updates: list[Update], data: Any) -> None:
    versions = versions_of(updates)
    earlier = data.draw(st.sampled_from(versions))
    back = roll_back(versions[-1], earlier)
    assert back.version == len(versions)  # a new version: no history is lost
    assert dataclasses.replace(back, version=earlier.version) == earlier
    assert diff(earlier, back) == {}
    assert diff(versions[-1], back) == diff(versions[-1], earlier)


def test_the_fold_over_a_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    batches: list[list[Update]] = [[ADD, MOUNT], [RETIRE_BETA], [on(Unmount), on(Pause, "b")]]
    states = [SEED]
    for step, batch in enumerate(batches):
        states.append(apply(states[-1], batch, step))
        log.append([accepted(step, states[-1].version, updates=batch)])
    states.append(roll_back(states[-1], states[1]))
    log.append([accepted(3, 4, updates=[], rolled_back_to=1)])
    states.append(apply(states[-1], [RETIRE_BETA], 4))
    log.append([accepted(4, 5, updates=[RETIRE_BETA])])
    assert fold_versions(SEED.tasks, read_log(log.path)) == states
    assert [state.version for state in states] == [0, 1, 2, 3, 4, 5]
    assert states[4].of("a") == states[1].of("a") != states[3].of("a")


@pytest.mark.parametrize("version", [2, -1])
def test_a_log_cannot_go_back_to_a_version_that_never_was(version: int) -> None:
    records = [accepted(0, 1, updates=[ADD]), accepted(1, 2, updates=[], rolled_back_to=version)]
    with pytest.raises(UpdateError, match=f"no version {version} to go back to"):
        fold_versions(SEED.tasks, records)


def accepted(step: int, version: int, **what: Any) -> Accepted:
    return Accepted(id=f"h-{version}", step=step, harness_version=version, decision_ids=[], **what)


def test_diff_lists_the_tasks_that_differ() -> None:
    first = apply(SEED, [MOUNT, on(Pause, "b")])
    second = apply(first, [on(Resume, "b"), on(Pause, "b"), on(Boost, factor=2.0)])
    assert diff(first, second) == {"a": (first.of("a"), second.of("a"))}
    assert diff(SEED, second) == {task: (TaskHarness(), second.of(task)) for task in "ab"}
    assert list(diff(SEED, second)) == ["a", "b"]
    assert diff(second, SEED)["a"] == (second.of("a"), TaskHarness())
    assert diff(second, second) == {}
    undone = apply(first, [on(Resume, "b")])  # on record, but as the seed has it
    assert diff(SEED, undone) == {"a": (TaskHarness(), first.of("a"))}


def test_ten_thousand_tasks_are_no_burden() -> None:
    """An update costs what its own tasks cost, and 10,000 tasks are compared in a blink."""
    ids = [f"t{i}" for i in range(10_000)]
    task = make_task("t0")
    seed = HarnessState({i: task.model_copy(update={"id": i}) for i in ids})
    state = apply(seed, [on(Mount, *ids, lines=("x",), share=0.5)])
    update = on(Rewrite, "t77", criterion_id=ALPHA.id, criterion=BEST)
    after = apply(state, [update])
    assert list(diff(state, after)) == ["t77"]
    assert best_of(20, lambda: apply(state, [update])) < 0.001
    assert best_of(10, lambda: diff(state, after)) < 0.1
    assert best_of(10, lambda: diff(seed, after)) < 0.1


def best_of(times: int, call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls: other work may share the machine."""
    return min(timeit.repeat(call, number=1, repeat=times))


# --- the harness as a file -----------------------------------------------------------------------


def reread(state: HarnessState, folder: Path) -> HarnessState:
    """`state` written as the run writes it, and read as a person's file is."""
    path = folder / "harness.yaml"
    path.write_text(dump_yaml(to_file(state).model_dump(mode="json", exclude_none=True)))
    return from_file(load_harness_file(path), state.tasks)


def test_a_harness_survives_its_file(tmp_path: Path) -> None:
    skill = on(
        Mount, field="skill", lines="rubric", share="ramp", fade=SigmoidFade(kind="sigmoid", x0=0.3)
    )
    faded = on(Mount, "b", lines=("y: z", "- w"), share=0.25, fade=SuccessFade(kind="success", groups=3))
    state = apply(SEED, [MOUNT, on(SetFade, fade=LINEAR), skill, faded, on(Dampen, "b", factor=0.3)], 6)
    state = apply(state, [RETIRE_BETA, ADD, on(Gate, criterion_id=GAMMA.id, cap=0.0)], 8)
    state = apply(state, [split(ALPHA, BEST, WORST), on(Pause, "b")], 9)
    assert reread(state, tmp_path) == state
    assert reread(SEED, tmp_path) == SEED


@given(st.lists(any_update, max_size=25))
@settings(max_examples=40)
def test_any_harness_survives_its_file(updates: list[Update]) -> None:
    import tempfile

    state = versions_of(updates)[-1]
    with tempfile.TemporaryDirectory() as folder:
        assert reread(state, Path(folder)) == state


def test_the_file_is_plain_data() -> None:
    state = apply(SEED, [ADD, RETIRE_BETA, MOUNT, on(Boost, "b", factor=2.0)], after_step=4)
    content = to_file(state).model_dump(mode="json", exclude_none=True)
    assert json.loads(json.dumps(content)) == content
    assert content["version"] == 1 and list(content["tasks"]) == ["a", "b"]
    checklist = {"field": "checklist", "lines": ["x", "y"], "share": 0.5, "since": 5}
    assert content["tasks"]["a"]["g"] == [checklist]
    assert content["tasks"]["a"]["c"]["retired"] == [BETA.id]
    (added,) = content["tasks"]["a"]["c"]["added"]
    assert (added["how"], added["parents"], added["version"]) == ("add", [], 1)
    assert (added["criterion"]["text"], added["criterion"]["points"]) == (
        "The response says gamma.",
        -1.0,
    )
    assert content["tasks"]["b"] == {
        "p": {"boost": 2.0, "paused": False},
        "g": [],
        "c": {"added": [], "retired": []},
    }


def test_a_run_can_begin_with_another_runs_harness() -> None:
    """As version 0, with fades that start anew."""
    state = apply(SEED, [on(Mount, lines=("x",), share=0.5, fade=LINEAR), RETIRE_BETA], after_step=7)
    begun = begin_with(to_file(state), SEED.tasks)
    assert begun.version == 0
    assert begun.of("a").guidance == (Guidance("checklist", ("x",), 0.5, LINEAR, since=0),)
    assert begun.rubric("a") == (ALPHA,)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"c": {"retired": ["c-0"]}}, "a: no criterion c-0 to retire"),
        ({"c": {"retired": [ALPHA.id, BETA.id]}}, "a: every criterion is retired"),
        ({"c": {"added": [{"criterion": ALPHA}]}}, "a: a criterion is added that is there already"),
        (
            {"g": [{"field": "skill", "lines": ["x"]}, {"field": "skill", "lines": ["y"]}]},
            "a: a guidance field is mounted twice",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_tasks_says_why(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        from_file(HarnessFile.model_validate({"tasks": {"a": entry}}), SEED.tasks)
    with pytest.raises(UpdateError, match="no training task 'h'"):
        from_file(HarnessFile.model_validate({"tasks": {"h": entry}}), SEED.tasks)


# --- updates as data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Boost, {"factor": 1.0}),
        (Boost, {"factor": 11.0}),
        (Boost, {"factor": float("nan")}),
        (Dampen, {"factor": 1.0}),
        (Dampen, {"factor": 0.0}),
        (Mount, {"lines": (), "share": 0.5}),
        (Mount, {"lines": "rubrics", "share": 0.5}),
        (Mount, {"lines": ("x",), "share": 1.0}),  # some rollouts always stay unguided
        (Mount, {"lines": ("x",), "share": 0.0}),
        (Mount, {"lines": ("x",), "share": "slope"}),
        (Mount, {"lines": ("x",), "share": 0.5, "field": "hint"}),
        (Mount, {"lines": ("x",), "share": 0.5, "domains": ("d",)}),  # p only
        (SetFade, {"fade": None}),
        (Split, {"criterion_id": ALPHA.id, "criteria": (BEST,)}),
        (Merge, {"criterion_ids": (ALPHA.id,), "criterion": BEST}),
        (Gate, {"criterion_id": ALPHA.id, "cap": 1.0}),
        (Gate, {"criterion_id": ALPHA.id, "cap": -0.1}),
        (Gate, {"criterion_id": ALPHA.id}),  # no gate has to be said
        (Pause, {"reason": "x"}),
        (Pause, {"interface": "g"}),
    ],
)
def test_updates_are_checked(kind: type[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        on(kind, **fields)
    with pytest.raises(ValidationError, match="names no task: give task_ids"):
        Pause(task_ids=(), rationale="")


EVERY: list[Update] = [
    on(Boost, factor=2.0),
    on(Dampen, factor=0.5),
    on(Pause),
    on(Resume),
    MOUNT,
    on(Edit, lines=("z",)),
    on(SetFade, fade=LINEAR),
    on(Unmount),
    ADD,
    rewrite(ALPHA, BEST),
    split(ALPHA, BEST, WORST),
    merge(BEST, ALPHA, BETA),
    on(Reweight, criterion_id=BETA.id, points=3.0),
    on(Gate, criterion_id=BETA.id, cap=0.5),
    RETIRE_BETA,
    on(Restore, criterion_id=BETA.id),
]


def test_every_kind_of_update_is_tested_here() -> None:
    kinds = [get_args(kind) for kind in (SamplingUpdate, GuidanceUpdate, RubricUpdate)]
    assert [type(update) for update in EVERY] == [kind for group in kinds for kind in group]


@pytest.mark.parametrize("update", EVERY, ids=lambda u: u.op)
def test_an_update_survives_json_and_can_be_described(update: Update) -> None:
    assert UPDATE.validate_json(update.model_dump_json()) == update
    assert UPDATE.validate_python(update.model_dump(mode="json")) == update
    line = describe(update)
    assert line.startswith(f"{update.interface} {update.op}") and "(a)" in line
    assert "because" not in line and "\n" not in line


def test_an_update_of_p_may_name_domains_and_tags() -> None:
    tagged = make_task("c", "e").model_copy(update={"tags": ("hard",)})
    tasks = harness_of(make_task("a"), make_task("b"), tagged, make_task("x", "e")).tasks
    assert resolve(Pause(domains=("d",), rationale=""), tasks) == on(Pause, "a", "b", rationale="")
    assert resolve(Pause(tags=("hard",), rationale=""), tasks) == on(Pause, "c", rationale="")
    several = Boost(task_ids=("b",), domains=("e", "d"), tags=("hard",), factor=2.0, rationale="")
    assert resolve(several, tasks) == on(Boost, "b", "c", "x", "a", factor=2.0, rationale="")
    assert resolve(MOUNT, tasks) is MOUNT
    with pytest.raises(ValueError, match="pause: no training task of domain 'f'; allowed: d, e"):
        resolve(Pause(domains=("f",), rationale=""), tasks)
    with pytest.raises(ValueError, match="pause: no training task with tag 'easy'; allowed: hard"):
        resolve(Pause(tags=("easy",), rationale=""), tasks)
    with pytest.raises(ValueError, match="allowed: none"):
        resolve(Pause(tags=("easy",), rationale=""), SEED.tasks)


@pytest.mark.parametrize("update", EVERY, ids=lambda u: u.op)
def test_what_an_update_retires_and_brings_in(update: Update) -> None:
    """Both helpers say what applying it does."""
    before = apply(SEED, [MOUNT])
    if update.op in ("resume", "restore"):
        before = apply(before, [on(Pause), RETIRE_BETA])
    after = apply(before, [update])
    gone = set(before.rubric("a")) - set(after.rubric("a"))
    assert replaced(update) == {criterion.id for criterion in gone}
    new = set(after.all_criteria("a")) - set(before.all_criteria("a"))
    if update.op not in ("reweight", "gate"):  # these name their criterion, they do not spell it out
        assert set(brought_in(update)) == new


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
