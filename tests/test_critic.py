"""The critic on scripted policies: what it samples, what it measures, and how often it is fooled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harnessrl.agents.evolver import trial
from harnessrl.agents.evolver.critic import Critic, StalePolicyError, Verdict
from harnessrl.agents.evolver.decision import Guard, Outcome, Replicates, Seen, accept_on_all
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.evolver.trial import UnmeasurableError
from harnessrl.agents.policy import Request
from harnessrl.agents.scoring.scorer import Scorer
from harnessrl.agents.usage import CountedPolicy, Purpose, Usage
from harnessrl.prompts import guided_prompt
from harnessrl.specs.guidance import Shown, SigmoidFade
from harnessrl.specs.harness import HarnessState, UpdateError, apply
from harnessrl.specs.schema import Oracle
from harnessrl.specs.tasks import Criterion, Task
from harnessrl.specs.updates import (
    MOST_MEASURED,
    Add,
    Boost,
    Edit,
    Gate,
    Merge,
    Mount,
    Pause,
    Resume,
    Retire,
    Reweight,
    Rewrite,
    Split,
    Unmount,
    Update,
)
from scripted import (
    PlainScorer,
    ScriptedPolicy,
    Write,
    by_index,
    group_record,
    harness_of,
    make_memory,
    make_spec,
    make_task,
    record_texts,
    says,
)

STEP = 4
TASK = make_task("t")
ADD_BETA = Add(task_ids=("t",), rationale="", criterion=says("beta"))


def mount(*lines: str, share: float | str = 0.5, **more: Any) -> Mount:
    return Mount(task_ids=("t",), rationale="", lines=lines or ("say alpha",), share=share, **more)


class World:
    """A critic over one scripted policy; `judge` measures an update there."""

    def __init__(self, folder: Path, write: Write, group_size: int = 8, **spec: Any) -> None:
        self.policy = ScriptedPolicy(write, version=STEP + 1)
        self.memory = make_memory(folder)
        self.spec = make_spec(group_size=group_size, **spec)
        self.critic = Critic(self.policy, PlainScorer(), self.memory, self.spec)

    def judge(
        self,
        update: Update,
        harness: HarnessState | None = None,
        revision: int = 0,
        step: int = STEP,
    ) -> Outcome:
        return self.critic.judge(update, harness or harness_of(TASK), step, revision)

    def decide(self, update: Update, harness: HarnessState | None = None, test: bool = True) -> Verdict:
        return self.critic.decide(update, harness or harness_of(TASK), STEP, 0, test)


# --- what is sampled -----------------------------------------------------------------------------

NOISE = by_index([f"{i % 7 / 10:.1f} {('alpha', 'beta')[i % 2]}" for i in range(64)])
#: Beta says what quality says; alpha is the other way round.
CLEAR = by_index([f"{0.1 + i % 4 / 10:.1f} {('alpha', 'beta')[i % 4 // 2]}" for i in range(64)])


def test_a_c_update_is_judged_on_one_set_of_fresh_rollouts(tmp_path: Path) -> None:
    world = World(tmp_path, CLEAR)
    found = world.judge(Add(task_ids=("t",), rationale="", criterion=says("beta", 3.0)))
    assert found.accepted and found.measured.rollouts == 32
    assert len(world.policy.requests) == 32  # not 32 before and 32 after
    assert {r.prompt for r in world.policy.requests} == {TASK.prompt}
    assert len(world.policy.asked(0)) == 32


def test_fresh_rollouts_have_keys_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE, extended_rollouts=32)
    seen: list[tuple[int | str, ...]] = []
    for revision in (0, 1, 2):
        world.policy.requests.clear()
        world.judge(ADD_BETA, revision=revision)
        seen += [r.key for r in world.policy.requests]
    world.policy.requests.clear()
    world.judge(mount(), revision=0)
    guided = {r.key for r in world.policy.asked(1)}
    assert len(seen) == len(set(seen)) == 3 * 32
    assert not guided & set(seen)
    # Purpose first: no training or probe draw shares a stream with the critic.
    assert {key[0] for key in seen} == {"critic"}
    assert {key[1:3] for key in seen} == {(STEP, "t")}


def test_the_runs_seed_reaches_the_policy(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE, seed=17)
    world.judge(ADD_BETA)
    assert set(world.policy.seeds) == {17}


def test_an_open_candidate_gets_more_rollouts_and_keeps_the_first_ones(tmp_path: Path) -> None:
    """At 32 rollouts the gain rests on one of them: open. The second look only adds."""
    texts = ["0.5 x"] * 64
    texts[3] = "0.9 beta"
    world = World(tmp_path, by_index(texts))
    found = world.judge(ADD_BETA)
    assert not found.accepted and found.measured.rollouts == 64
    assert [r.key[-1] for r in world.policy.requests] == list(range(64))


@pytest.mark.parametrize(
    ("write", "update"),
    [
        (CLEAR, Add(task_ids=("t",), rationale="", criterion=says("beta", 3.0))),  # accepted
        (CLEAR, Add(task_ids=("t",), rationale="", criterion=says("alpha beta"))),  # no effect
        (by_index(["0.9 x", "0.1 beta"]), ADD_BETA),  # a guard fails
    ],
)
def test_a_settled_candidate_gets_no_second_look(write: Write, update: Update, tmp_path: Path) -> None:
    world = World(tmp_path, write)
    assert not world.judge(update).open
    assert len(world.policy.requests) == 32


def test_a_g_update_takes_two_independent_samples(tmp_path: Path) -> None:
    world = World(tmp_path, by_index(["0.3 x", "0.4 x"], ["0.8 alpha", "0.9 alpha"]))
    found = world.judge(mount("name alpha", "be brief"))
    assert found.accepted and found.measured.rollouts == 64
    assert len(world.policy.asked(0)) == len(world.policy.asked(1)) == 32
    assert {r.prompt for r in world.policy.asked(0)} == {TASK.prompt}
    (prompt,) = {r.prompt for r in world.policy.asked(1)}
    assert prompt == guided_prompt(TASK.prompt, (Shown("checklist", ("name alpha", "be brief")),))
    assert TASK.prompt in prompt and "- name alpha\n- be brief" in prompt
    assert prompt.index(TASK.prompt) < prompt.index("- name alpha")


def test_a_p_update_needs_no_rollouts(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    found = world.judge(Pause(task_ids=("t",), rationale=""))
    assert world.policy.requests == [] and found.measured.rollouts == 0


@pytest.mark.parametrize("update", [ADD_BETA, mount(), Pause(task_ids=("t",), rationale="")])
@pytest.mark.parametrize("version", [STEP, STEP + 2])
def test_a_stale_policy_is_refused(update: Update, version: int, tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    world.policy.version = version
    with pytest.raises(StalePolicyError, match=f"after step {STEP}.*has taken {version} steps"):
        world.judge(update)
    assert world.policy.requests == []


def test_the_same_question_gets_the_same_answer_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    harness = harness_of(TASK)
    first, second = world.judge(ADD_BETA, harness), world.judge(ADD_BETA, harness)
    assert first == second
    assert harness == harness_of(TASK) and world.memory.records == []


def test_what_cannot_be_applied_is_not_measured(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    with pytest.raises(UpdateError):
        world.judge(Add(task_ids=("t",), rationale="", criterion=TASK.rubric[0]))
    with pytest.raises(UpdateError):
        world.judge(Unmount(task_ids=("t",), rationale=""))
    assert world.policy.requests == []


def test_critic_rollouts_and_verdicts_are_counted_apart(tmp_path: Path) -> None:
    usage = Usage()
    policy = CountedPolicy(ScriptedPolicy(CLEAR, STEP + 1), usage, "critic")
    scorer = PlainScorer()
    scorer.usage = usage
    spec = make_spec(extended_rollouts=32)
    Critic(policy, scorer, make_memory(tmp_path), spec).judge(ADD_BETA, harness_of(TASK), STEP, 0)
    assert usage.rollouts == {"train": 0, "critic": 32, "probe": 0}
    assert usage.tokens == {"train": 0, "critic": 64, "probe": 0}  # two words each
    assert usage.judge_calls == {"train": 0, "critic": 64, "probe": 0}  # alpha and beta


# --- what is measured ----------------------------------------------------------------------------


def naive_counts(group: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """(informative pairs, signal pairs) of a group of (score, quality), pair by pair."""
    collapsed = len({s for s, _ in group}) == 1
    informative = signal = 0
    for (s1, q1), (s2, q2) in itertools.combinations(group, 2):
        if s1 != s2:
            signal += 1
            informative += q1 != q2 and (s1 > s2) == (q1 > q2)
        elif collapsed and q1 != q2:
            signal += 1
    return informative, signal


def pooled(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    counts = [naive_counts(group) for group in groups]
    return sum(i for i, _ in counts) / sum(n for _, n in counts)


def test_the_signal_is_that_of_groups_as_training_would_draw_them(tmp_path: Path) -> None:
    """Of six rollouts all 20 groups of three, by hand; the critic draws 512 of them at random."""
    texts = ["0.1 x", "0.2 beta", "0.3 alpha", "0.5 x", "0.7 beta", "0.9 alpha beta"]
    world = World(tmp_path, by_index(texts), group_size=3, rollouts=6, extended_rollouts=6)
    found = world.judge(ADD_BETA).measured
    quality = [0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    alpha = [float("alpha" in text) for text in texts]
    both = [("alpha" in text) / 2 + ("beta" in text) / 2 for text in texts]
    for measured, score in ((found.before, alpha), (found.after, both)):
        groups = list(itertools.combinations(zip(score, quality, strict=True), 3))
        assert measured == pytest.approx(pooled(groups), abs=0.03)
    assert found.gain == found.after - found.before
    assert found.rollouts == 6


def test_agreement_is_measured_on_all_rollouts(tmp_path: Path) -> None:
    texts = ["0.1 alpha", "0.2 x", "0.3 beta", "0.4 beta"]
    world = World(tmp_path, by_index(texts), group_size=4, rollouts=4, extended_rollouts=4)
    before, after = world.judge(ADD_BETA).measured.guards["agreement with quality"]
    assert before == pytest.approx(-3 / 6)  # alpha beats the three better ones
    assert after == pytest.approx((2 - 1) / 6)  # the last two beat the second, the first does too


def test_a_criterion_that_turns_the_order_round_is_rejected(tmp_path: Path) -> None:
    """Half of the rollouts tie at the floor; the candidate spreads them, against quality."""
    texts = [f"{0.1 + i % 8 / 10:.1f} {'alpha' if i % 8 == 7 else ''}" for i in range(64)]
    texts = [text + (" beta" if float(text.split()[0]) < 0.4 else "") for text in texts]
    found = World(tmp_path, by_index(texts)).judge(ADD_BETA)
    assert not found.accepted
    assert "guard failed: agreement with quality" in found.reason


def test_retiring_a_criterion_against_quality_is_accepted(tmp_path: Path) -> None:
    bad = says("beta")
    harness = harness_of(make_task("t", rubric=[says("alpha"), bad]))
    texts = [f"{0.1 + i % 8 / 10:.1f} {'alpha' if i % 8 > 3 else 'beta'}" for i in range(64)]
    world = World(tmp_path, by_index(texts))
    found = world.judge(Retire(task_ids=("t",), rationale="", criterion_id=bad.id), harness)
    # Both met points cancel before: all rollouts score 1/2.
    assert found.accepted and found.measured.before == 0.0
    assert found.measured.guards["agreement with quality"][0] == 0.0


@pytest.mark.parametrize("points", [0.2, 5.0])
def test_a_criterion_nobody_can_score_is_not_measured(points: float, tmp_path: Path) -> None:
    """A silent judge is no evidence: neither for a change nor against it."""
    judged = Criterion(text="The response is wise.", points=points)  # no check, no judge role
    with pytest.raises(UnmeasurableError, match="100% of the fresh rollouts have unscored verdicts"):
        World(tmp_path, CLEAR).judge(Add(task_ids=("t",), rationale="", criterion=judged))


def test_a_judge_that_falls_silent_does_not_speak_for_a_retirement(tmp_path: Path) -> None:
    judged = Criterion(text="The response is wise.", points=5.0)
    harness = harness_of(make_task("t", rubric=[says("alpha"), judged]))
    retire = Retire(task_ids=("t",), rationale="", criterion_id=judged.id)
    with pytest.raises(UnmeasurableError, match="unscored"):
        World(tmp_path, CLEAR).judge(retire, harness)


class Mute(PlainScorer):
    """Cannot say whether a response with the word `mute` says beta."""

    def verdicts(
        self, task: Task, rubric: Sequence[Criterion], responses: Sequence[str], purpose: Purpose
    ) -> np.ndarray:
        met_GK = super().verdicts(task, rubric, responses, purpose)
        for i, k in itertools.product(range(len(responses)), range(len(rubric))):
            if "mute" in responses[i] and "beta" in rubric[k].text:
                met_GK[i, k] = np.nan
        return met_GK


def test_unscored_verdicts_are_dropped_group_by_group_as_in_training(tmp_path: Path) -> None:
    """Beta (a tenth of the points) is unscored on one rollout of six.

    Training drops it in the groups that hold this rollout, half of those of three, and not in the
    others. Dropped for all six at once the rubric looks blind, and any candidate like a gain.
    """
    harness = harness_of(make_task("t", rubric=[says("alpha", 9.0), says("beta", 1.0)]))
    quality = [0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    says_beta: list[float | None] = [0, 0, 1, 1, 1, None]
    words = {0: "alpha", 1: "alpha beta", None: "alpha mute"}
    texts = [f"{q} {words[b]}" for q, b in zip(quality, says_beta, strict=True)]
    world = World(tmp_path, by_index(texts), group_size=3, rollouts=6, extended_rollouts=6)
    world.critic.scorer = Mute()
    found = world.judge(Add(task_ids=("t",), rationale="", criterion=says("never")), harness)
    groups = []
    for subset in itertools.combinations(range(6), 3):
        heard = [says_beta[i] for i in subset]
        scores = [1.0 if None in heard else 0.9 + 0.1 * (b or 0.0) for b in heard]
        groups.append([(s, quality[i]) for s, i in zip(scores, subset, strict=True)])
    assert found.measured.before == pytest.approx(pooled(groups), abs=0.04)


# --- several tasks -------------------------------------------------------------------------------

AB = harness_of(make_task("a"), make_task("b"))
BOTH_BETA = Add(task_ids=("a", "b"), rationale="", criterion=says("beta", 3.0))


def on_each(**texts: Sequence[str]) -> Write:
    """Texts of the tasks' fresh rollouts by their number."""

    def write(request: Request, rng: np.random.Generator) -> str:
        task, n = str(request.key[2]), int(request.key[-1])
        return texts[task][n % len(texts[task])]

    return write


def alone(update: Update, task: str) -> Update:
    return update.model_copy(update={"task_ids": (task,)})


#: Beta goes with quality; against it; beside it.
UP = [f"{0.1 + i % 4 / 10:.1f} {('alpha', 'beta')[i % 4 // 2]}" for i in range(8)]
DOWN = [f"{0.1 + i % 4 / 10:.1f} {('beta', 'alpha')[i % 4 // 2]}" for i in range(8)]
SILENT = ["0.1 x", "0.4 x"]


def test_a_change_of_several_tasks_is_measured_on_each_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, on_each(a=UP, b=UP[::-1]))
    heard: list[tuple[int, int]] = []
    verdict = world.critic.decide(BOTH_BETA, AB, STEP, 0, True, lambda *cost: heard.append(cost))
    assert heard == [(2, 64)] and len(world.policy.requests) == 64
    found = verdict.measured
    assert verdict.accepted and found is not None
    assert verdict.reason.startswith("on 2 tasks: gain ") and verdict.reason.endswith("guards held")
    assert found.rollouts == 64 and set(found.tasks) == {"a", "b"}
    # What is seen of a task is what it would be measured to be alone.
    for task in ("a", "b"):
        assert world.judge(alone(BOTH_BETA, task), AB).measured == found.tasks[task]
    for name in ("before", "after", "gain"):
        mean = np.mean([getattr(one, name) for one in found.tasks.values()])
        assert getattr(found, name) == pytest.approx(mean)


def test_a_change_of_several_tasks_is_not_accepted_on_one_tasks_evidence(tmp_path: Path) -> None:
    world = World(tmp_path, on_each(a=UP, b=DOWN))
    assert world.judge(alone(BOTH_BETA, "a"), AB).accepted
    found = world.judge(BOTH_BETA, AB)
    assert not found.accepted
    assert found.reason.startswith("on 2 tasks: guard failed: agreement with quality on b ")
    assert " on a " not in found.reason
    assert set(found.measured.guards) >= {"agreement with quality", "agreement with quality on b"}


def test_a_task_without_an_effect_is_in_nobodys_way(tmp_path: Path) -> None:
    found = World(tmp_path, on_each(a=UP, b=SILENT)).judge(BOTH_BETA, AB)
    assert found.accepted
    assert found.measured.tasks["b"].gain == 0
    assert found.measured.gain == pytest.approx(found.measured.tasks["a"].gain / 2)


def test_no_task_pays_for_another(tmp_path: Path) -> None:
    """On `b` beta splits responses of one quality, by chance: agreement stays, signal falls."""
    splits = ["0.2 x", "0.2 beta", "0.6 alpha", "0.6 alpha beta"]
    world = World(tmp_path, on_each(a=["0.1 x", "0.4 beta"], b=splits))
    small = BOTH_BETA.model_copy(update={"criterion": says("beta", 0.2)})
    found = world.judge(small, AB)
    guards = found.measured.tasks["b"].guards["agreement with quality"]
    assert guards[1] >= guards[0] and found.measured.tasks["b"].gain < -0.1
    assert found.measured.gain > 0.05 and found.measured.p_no_gain <= found.measured.alpha
    assert not found.accepted
    assert found.reason.startswith("on 2 tasks: guard failed: signal rate on b ")


def test_evidence_of_several_tasks_adds_up(tmp_path: Path) -> None:
    """On each task the gain rests on two rollouts of 32; a bootstrap sample misses both now and then."""
    few = ["0.5 x"] * 32
    few[3] = few[9] = "0.9 beta"
    world = World(tmp_path, on_each(a=few, b=few, c=few), extended_rollouts=32)
    three = harness_of(*(make_task(name) for name in "abc"))
    update = BOTH_BETA.model_copy(update={"task_ids": ("a", "b", "c")})
    one = world.judge(alone(update, "a"), three)
    assert not one.accepted and "may be luck" in one.reason
    assert world.judge(update, three).accepted


def test_several_tasks_get_a_second_look_together(tmp_path: Path) -> None:
    lucky = ["0.5 x"] * 64
    lucky[3] = "0.9 beta"
    world = World(tmp_path, on_each(a=lucky, b=lucky))
    found = world.judge(BOTH_BETA, AB)
    assert not found.accepted and found.measured.rollouts == 128
    for task in "ab":
        numbers = [r.key[-1] for r in world.policy.requests if r.key[2] == task]
        assert numbers == list(range(64))


def test_guidance_of_several_tasks_may_do_no_harm_on_any(tmp_path: Path) -> None:
    plain = ["0.3 x", "0.4 x"]
    guided = {"a": ["0.8 alpha", "0.9 alpha"], "b": ["0.2 alpha", "0.3 alpha"]}

    def write(request: Request, rng: np.random.Generator) -> str:
        texts = guided[str(request.key[2])] if request.key[-2] else plain
        return texts[int(request.key[-1]) % 2]

    world = World(tmp_path, write)
    both = mount().model_copy(update={"task_ids": ("a", "b")})
    found = world.judge(both, AB)
    assert found.measured.rollouts == len(world.policy.requests) == 2 * 2 * 32
    assert world.judge(alone(both, "a"), AB).accepted and not found.accepted
    assert "guard failed: mean quality on b 0.35 -> 0.25" in found.reason


def test_what_cannot_be_measured_on_a_task_is_said_with_its_name(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    ramped = apply(AB, [alone(mount("say alpha", "be brief", share="ramp"), "b")])
    both = mount("x").model_copy(update={"task_ids": ("a", "b")})
    with pytest.raises(UnmeasurableError, match=r"^b: a ramp shows each rollout other lines"):
        world.judge(both, ramped)
    assert world.policy.requests == []  # nothing is spent before


def test_a_change_of_very_many_tasks_is_not_measured(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(MOST_MEASURED + 1)]
    harness = harness_of(*map(make_task, names))
    world = World(tmp_path, NOISE)
    everywhere = BOTH_BETA.model_copy(update={"task_ids": tuple(names)})
    verdict = world.decide(everywhere, harness)
    assert not verdict.accepted and world.policy.requests == []
    assert verdict.reason == (
        "cannot be measured: a change of g or c is measured on 16 tasks at most, not on 17"
    )
    assert world.decide(everywhere, harness, test=False).accepted
    pause = Pause(task_ids=tuple(names), rationale="")
    assert world.judge(pause, harness).measured.rollouts == 0  # p needs no rollouts


# --- guidance ------------------------------------------------------------------------------------


def test_guided_groups_hold_guided_and_plain_rollouts(tmp_path: Path) -> None:
    """Groups of 4 with a share of 0.5: two plain and two guided ones, all 36 of them by hand."""
    plain = ["0.1 x", "0.2 x", "0.3 alpha", "0.4 x"]
    guided = ["0.6 alpha", "0.2 alpha", "0.7 alpha", "0.3 x"]
    world = World(tmp_path, by_index(plain, guided), group_size=4, rollouts=4, extended_rollouts=4)
    found = world.judge(mount(share=0.5)).measured

    def scored(texts: Sequence[str]) -> list[tuple[float, float]]:
        return [(float("alpha" in text), float(text.split()[0])) for text in texts]

    pairs = itertools.product(
        itertools.combinations(scored(plain), 2), itertools.combinations(scored(guided), 2)
    )
    assert found.before == pytest.approx(pooled([scored(plain)]))
    assert found.after == pytest.approx(pooled([(*a, *b) for a, b in pairs]), abs=0.03)
    assert found.guards["mean quality"] == (pytest.approx(0.25), pytest.approx(0.45))
    assert found.guards["top-quartile quality"] == (pytest.approx(0.4), pytest.approx(0.7))


def test_gibberish_guidance_is_rejected_although_pairs_become_informative(tmp_path: Path) -> None:
    """Plain responses all meet the rubric; guided ones meet nothing and are worse: perfect order."""
    plain, guided = ["0.6 alpha", "0.7 alpha"], ["0.0 zzz"]
    found = World(tmp_path, by_index(plain, guided)).judge(mount())
    assert found.measured.before == 0.0 and found.measured.gain > 0.9
    assert not found.accepted and not found.open
    assert found.reason.startswith("guard failed: mean quality 0.65 -> 0.00")


def test_guidance_that_lifts_the_mean_but_not_the_best_is_rejected(tmp_path: Path) -> None:
    plain = ["0.2 x", "0.3 x", "0.2 x", "0.8 x"]
    guided = ["0.7 alpha", "0.8 alpha"]
    found = World(tmp_path, by_index(plain, guided)).judge(mount())
    assert found.measured.gain > 0.2
    assert not found.accepted
    assert found.reason.startswith("guard failed: top-quartile quality 0.80 -> 0.80")


def test_guidance_may_come_off_when_groups_spread_without_it(tmp_path: Path) -> None:
    """Guided rollouts sit at the ceiling, all alike; plain ones score as they are."""
    plain = [f"0.{i} {'alpha' if i > 4 else 'x'}" for i in range(1, 9)]
    guided = ["0.9 alpha", "0.8 alpha", "0.1 alpha"]
    mounted = apply(harness_of(TASK), [mount(share=0.75)])
    world = World(tmp_path, by_index(plain, guided))
    found = world.judge(Unmount(task_ids=("t",), rationale=""), mounted)
    assert found.accepted
    assert found.measured.after > 0.98  # nearly every plain group: 16 informative pairs of 16
    assert found.measured.before < 0.7
    assert found.measured.guards == {}
    assert len(world.policy.asked(1)) == len(world.policy.asked(0)) == 32
    # ... and stays where plain groups carry no signal.
    silent = World(tmp_path, by_index(["0.2 x", "0.3 x"], ["0.8 alpha", "0.9 alpha"]))
    kept = silent.judge(Unmount(task_ids=("t",), rationale=""), mounted)
    assert not kept.accepted and kept.measured.after == 0.0 and kept.measured.gain < -0.5


def test_another_checklist_has_to_beat_the_mounted_one(tmp_path: Path) -> None:
    """A helped already. B does the same: against plain groups a gain, against today's none."""
    world = World(tmp_path, by_index(["0.3 x", "0.4 x"], ["0.8 alpha", "0.9 alpha"]))
    seed = harness_of(TASK)
    assert world.judge(mount("A"), seed).accepted
    mounted = apply(seed, [mount("A")])
    found = world.judge(mount("B"), mounted)
    assert not found.accepted
    assert found.measured.before == pytest.approx(found.measured.after, abs=0.05)


def test_without_an_oracle_nothing_can_be_measured(tmp_path: Path) -> None:
    world = World(tmp_path, by_index(["0.3 x"], ["0.8 alpha"]))
    world.critic.scorer = Scorer(Oracle(kind="none"), Usage(), 0.2)
    with pytest.raises(UnmeasurableError, match="oracle says nothing about t"):
        world.judge(mount())


def test_how_many_rollouts_carry_guidance(tmp_path: Path) -> None:
    """As many as in training, the most guided first."""
    guided = (Shown("checklist", ("x",)),)

    def mix(share: float, size: int, **more: Any) -> dict[Any, int]:
        harness = apply(harness_of(TASK), [mount("x", share=share, **more)], STEP)
        return World(tmp_path, NOISE, group_size=size).critic.mix(harness, TASK, STEP + 1)

    counts = [mix(*pair)[guided] for pair in ((0.5, 8), (0.5, 7), (0.99, 8))]
    assert counts == [4, 3, 7]
    assert list(mix(0.5, 8).items()) == [(guided, 4), ((), 4)]
    assert mix(0.1, 8) == {(): 8}
    assert World(tmp_path, NOISE).critic.mix(harness_of(TASK), TASK, STEP) == {(): 8}
    assert all(mix(s / 100, 8).get(guided, 0) < 8 for s in range(1, 100))
    # What is left of it at step 5 of 28: half of 8 rollouts, times 1 / (1 + exp(125 (5/27 - 0.2))).
    assert mix(0.5, 8, fade=SigmoidFade(kind="sigmoid")) == {guided: 3, (): 5}


def test_two_guidance_fields_on_one_task_are_measured_as_several_kinds(tmp_path: Path) -> None:
    """Groups of 4 with a checklist on two and a skill on one: 1 + 1 guided and 2 plain, by hand."""
    checklist, skill = Shown("checklist", ("say alpha",)), Shown("skill", ("think first",))
    texts = [
        ["0.1 x", "0.2 x", "0.3 alpha", "0.4 x"],  # plain
        ["0.6 alpha", "0.2 alpha", "0.5 x", "0.3 x"],  # under the checklist
        ["0.7 alpha", "0.9 alpha", "0.8 alpha", "0.1 x"],  # under both
    ]

    def write(request: Request, rng: np.random.Generator) -> str:
        return texts[int(request.key[-2])][int(request.key[-1])]

    world = World(tmp_path, write, group_size=4, rollouts=4, extended_rollouts=4)
    mounted = apply(harness_of(TASK), [mount()])
    found = world.judge(mount("think first", share=0.25, field="skill"), mounted).measured
    shown: list[tuple[Shown, ...]] = [(), (checklist,), (checklist, skill)]
    for number, parts in enumerate(shown):
        assert len(world.policy.asked(number)) == 4
        assert {r.prompt for r in world.policy.asked(number)} == {guided_prompt(TASK.prompt, parts)}
    assert found.rollouts == len(world.policy.requests) == 12

    plain, first, both = ([(float("alpha" in t), float(t.split()[0])) for t in kind] for kind in texts)
    pairs = list(itertools.combinations(plain, 2))
    before = [(*a, *b) for a, b in itertools.product(pairs, itertools.combinations(first, 2))]
    after = [(*a, b, c) for a, b, c in itertools.product(pairs, first, both)]
    assert found.before == pytest.approx(pooled(before), abs=0.03)
    assert found.after == pytest.approx(pooled(after), abs=0.03)
    # The guards compare the most guided rollouts with plain ones.
    assert found.guards["mean quality"] == (pytest.approx(0.25), pytest.approx(0.625))
    assert found.guards["top-quartile quality"] == (pytest.approx(0.4), pytest.approx(0.9))


def test_rubric_guidance_is_measured_as_the_criteria_in_force(tmp_path: Path) -> None:
    harness = harness_of(make_task("t", rubric=[says("alpha"), says("zzz", -1.0)]))
    world = World(tmp_path, by_index(["0.3 x", "0.4 x"], ["0.8 alpha", "0.9 alpha"]))
    update = Mount(task_ids=("t",), rationale="", lines="rubric", share=0.5)
    assert world.judge(update, harness).accepted
    parts = (Shown("checklist", ("The response says alpha.",), ("The response says zzz.",)),)
    assert {r.prompt for r in world.policy.asked(1)} == {guided_prompt(TASK.prompt, parts)}


def test_a_ramp_cannot_be_measured(tmp_path: Path) -> None:
    """No two rollouts are of one kind: neither as a candidate nor where it is mounted."""
    world = World(tmp_path, NOISE)
    ramp = mount("say alpha", "be brief", share="ramp")
    ramped = apply(harness_of(TASK), [ramp])
    for update, harness in ((ramp, harness_of(TASK)), (mount("x"), ramped)):
        with pytest.raises(UnmeasurableError, match="a ramp shows each rollout other lines"):
            world.judge(update, harness)
        verdict = world.decide(update, harness)
        assert not verdict.accepted and verdict.measured is None
        assert verdict.reason == "cannot be measured: a ramp shows each rollout other lines"
    assert world.policy.requests == []
    assert world.judge(ADD_BETA, ramped).measured.rollouts >= 32  # c is measured on plain rollouts


# --- rules ---------------------------------------------------------------------------------------

ALPHA, BETA, GAMMA = says("alpha"), says("beta"), says("gamma")
BOTH = harness_of(make_task("t", rubric=[ALPHA, BETA]))
ABOUT: dict[str, Any] = {"task_ids": ("t",), "rationale": ""}


@pytest.mark.parametrize(
    "update",
    [
        Retire(criterion_id=ALPHA.id, **ABOUT),
        Rewrite(criterion_id=ALPHA.id, criterion=GAMMA, **ABOUT),
        Split(criterion_id=ALPHA.id, criteria=(GAMMA, says("delta")), **ABOUT),
        Merge(criterion_ids=(ALPHA.id, BETA.id), criterion=GAMMA, **ABOUT),
        Reweight(criterion_id=ALPHA.id, points=9.0, **ABOUT),
        Gate(criterion_id=ALPHA.id, cap=0.5, **ABOUT),
    ],
    ids=lambda update: update.op,
)
def test_anchored_seed_criteria_stay_as_they_are(update: Update, tmp_path: Path) -> None:
    world = World(tmp_path, NOISE, c={"anchored": True})
    with pytest.raises(UpdateError, match=f"{ALPHA.id}.* is a seed criterion of t"):
        world.judge(update, BOTH)
    for test in (True, False):  # no force gets around it
        verdict = world.decide(update, BOTH, test)
        assert not verdict.accepted and verdict.reason.startswith(f"cannot be applied: {update.op}: ")
    assert world.policy.requests == []
    assert World(tmp_path, NOISE).decide(update, BOTH, test=False).accepted


def test_added_criteria_may_change_beside_an_anchor(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE, c={"anchored": True})
    assert world.decide(Add(criterion=GAMMA, **ABOUT), BOTH, test=False).accepted
    more = apply(BOTH, [Add(criterion=GAMMA, **ABOUT)])
    for update in (
        Retire(criterion_id=GAMMA.id, **ABOUT),
        Reweight(criterion_id=GAMMA.id, points=9.0, **ABOUT),
        Rewrite(criterion_id=GAMMA.id, criterion=says("delta"), **ABOUT),
    ):
        assert world.decide(update, more, test=False).accepted
        assert world.judge(update, more).measured.rollouts >= 32


def test_guidance_that_repeats_the_reference_is_refused_as_a_leak(tmp_path: Path) -> None:
    reference = "The tides follow the moon around the earth."
    harness = harness_of(TASK.model_copy(update={"reference": reference}))
    leak, clean = "say that the tides follow the moon", "say what moves the sea"
    world = World(tmp_path, NOISE)
    mounted = apply(harness, [mount(clean)])
    edit = Edit(task_ids=("t",), rationale="", lines=(leak, "be kind"))
    # 2 of 4 runs, and of 5: a line that is shorter than a run counts as one.
    for update, state, share in ((mount(leak), harness, "50%"), (edit, mounted, "40%")):
        assert world.decide(update, state, test=False).accepted
        strict = World(tmp_path, NOISE, g={"max_overlap": 0.3})
        for test in (True, False):
            verdict = strict.decide(update, state, test)
            assert not verdict.accepted and verdict.measured is None
            told = f"cannot be applied: {update.op}: a leak, {share} of it (by 4-word runs) is in"
            assert verdict.reason.startswith(told)
        assert strict.policy.requests == []
    assert not world.decide(mount(reference), harness, test=False).accepted
    assert world.decide(mount(clean), harness, test=False).accepted
    assert world.decide(mount(reference), test=False).accepted  # the task has no reference
    rubric = Mount(task_ids=("t",), rationale="", lines="rubric", share=0.5)
    assert world.decide(rubric, harness, test=False).accepted


def test_without_a_test_whatever_can_be_applied_is_accepted_unmeasured(tmp_path: Path) -> None:
    world = World(tmp_path, NOISE)
    world.policy.version = 0  # and no policy is asked
    useless = Add(criterion=says("never"), **ABOUT)
    for update in (useless, mount("zzz", share="ramp"), Pause(**ABOUT)):
        assert world.decide(update, test=False) == Verdict(True, "not measured", None)
    refused = world.decide(Resume(**ABOUT), test=False)
    assert refused == Verdict(False, "cannot be applied: resume: t is not paused", None)
    assert world.policy.requests == []


def test_what_is_decided_is_what_was_measured(tmp_path: Path) -> None:
    world = World(tmp_path, CLEAR)
    for update in (Add(criterion=says("beta", 3.0), **ABOUT), Add(criterion=says("never"), **ABOUT)):
        outcome, verdict = world.judge(update), world.decide(update)
        assert verdict == Verdict(outcome.accepted, outcome.reason, outcome.measured)
    assert world.decide(Add(criterion=says("beta", 3.0), **ABOUT)).accepted
    world.policy.version = STEP
    with pytest.raises(StalePolicyError):
        world.decide(ADD_BETA)


# --- task sampling -------------------------------------------------------------------------------

TASKS = [make_task(name, "d") for name in "abcd"] + [make_task(name, "e") for name in "xy"]
SIX = harness_of(*TASKS)
RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
STEPPED = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def fill(memory: Memory, task: str, rewards: Sequence[float], step: int = STEP, slot: int = 0) -> None:
    memory.add([group_record(SIX.tasks[task], list(rewards), list(RISING), step, slot)])


def sampling_world(folder: Path, min_effective: float = 1.0, **evolver: Any) -> World:
    """s(a) = 0, s(b) = 28/28, s(c) = 16/28, s(x) = 0; d and y have no evidence: 44/112 each."""
    world = World(folder, NOISE, p={"min_effective_tasks": min_effective}, **evolver)
    fill(world.memory, "a", [1.0] * 8, slot=0)
    fill(world.memory, "b", RISING, slot=1)
    fill(world.memory, "c", STEPPED, slot=2)
    fill(world.memory, "x", [0.0] * 8, slot=3)
    return world


def test_a_p_update_is_scored_on_the_expected_signal_of_its_domain(tmp_path: Path) -> None:
    found = sampling_world(tmp_path).judge(Pause(task_ids=("a",), rationale=""), SIX)
    s_b, s_c, s_d = 28 / 28, 16 / 28, 44 / 112
    assert found.measured.before == pytest.approx((0 + s_b + s_c + s_d) / 4)
    assert found.measured.after == pytest.approx((0.1 * 0 + s_b + s_c + s_d) / 3.1)
    assert found.accepted
    # Effective tasks: the domain keeps its share of 4/6, e its two tasks with 1/6 each.
    p = [4 / 6 * w / 3.1 for w in (0.1, 1, 1, 1)] + [1 / 6, 1 / 6]
    effective = 1 / sum(v * v for v in p)
    assert found.measured.guards == {"effective tasks": (1.0, pytest.approx(effective))}


def test_boosting_a_good_task_by_hand(tmp_path: Path) -> None:
    found = sampling_world(tmp_path).judge(Boost(task_ids=("b",), rationale="", factor=4.0), SIX)
    assert found.measured.before == pytest.approx((1 + 16 / 28 + 44 / 112) / 4)
    assert found.measured.after == pytest.approx((4 + 16 / 28 + 44 / 112) / 7)
    assert found.accepted


def test_boosting_a_poor_task_is_rejected_with_the_measured_loss(tmp_path: Path) -> None:
    found = sampling_world(tmp_path).judge(Boost(task_ids=("a",), rationale="", factor=4.0), SIX)
    assert not found.accepted and found.measured.gain < 0
    assert "below the margin" in found.reason


def test_too_few_effective_tasks_are_refused(tmp_path: Path) -> None:
    found = sampling_world(tmp_path, min_effective=5.5).judge(Pause(task_ids=("a",), rationale=""), SIX)
    assert not found.accepted
    assert found.reason.startswith("guard failed: effective tasks 5.50 -> 5.1")
    allowed = sampling_world(tmp_path, min_effective=5.0)
    assert allowed.judge(Pause(task_ids=("a",), rationale=""), SIX).accepted


def test_below_the_floor_already_it_may_only_rise(tmp_path: Path) -> None:
    world = sampling_world(tmp_path, min_effective=6.0)
    narrowed = apply(SIX, [Pause(task_ids=("b",), rationale="")])
    back = world.judge(Resume(task_ids=("b",), rationale=""), narrowed)
    assert back.accepted
    before, after = back.measured.guards["effective tasks"]
    assert before < 5.5 and after == pytest.approx(6.0)
    assert not world.judge(Pause(task_ids=("a",), rationale=""), narrowed).accepted


def test_old_rollouts_do_not_count(tmp_path: Path) -> None:
    world = sampling_world(tmp_path, max_staleness=2)
    fill(world.memory, "a", RISING, step=STEP - 2)  # three steps back, counting this one
    fill(world.memory, "d", [1.0] * 8, step=STEP - 2)
    fill(world.memory, "a", RISING, step=STEP + 1)  # and none from later steps
    found = world.judge(Pause(task_ids=("a",), rationale=""), SIX)
    assert found.measured.before == pytest.approx((0 + 1 + 16 / 28 + 44 / 112) / 4)
    fill(world.memory, "d", [1.0] * 8, step=STEP - 1)
    fresh = world.judge(Pause(task_ids=("a",), rationale=""), SIX)
    assert fresh.measured.before == pytest.approx((0 + 1 + 16 / 28 + 0) / 4)


def test_groups_scored_by_an_earlier_rubric_are_read_by_todays(tmp_path: Path) -> None:
    """Under the seed rubric every response of `a` ties; the added criterion tells them apart."""
    world = World(tmp_path, NOISE, p={"min_effective_tasks": 1.0})
    texts = [f"0.{i} alpha {'beta' if i > 4 else ''}" for i in range(1, 9)]
    record_texts(world.memory, SIX, STEP, {"a": texts})
    for slot, task in enumerate("bcd", 1):
        fill(world.memory, task, [1.0] * 8, slot=slot)
    repair = Add(task_ids=("a",), rationale="", criterion=says("beta"))
    boost = Boost(task_ids=("a",), rationale="", factor=4.0)
    assert world.judge(boost, SIX).measured.after == 0.0
    found = world.judge(boost, apply(SIX, [repair])).measured
    informative = 16 / 28  # four with beta above four without, of 28 pairs
    assert found.before == pytest.approx(informative / 4)
    assert found.after == pytest.approx(informative * 4 / 7)


def test_a_task_the_oracle_never_looked_at_counts_as_an_average_one(tmp_path: Path) -> None:
    """Rollouts without an oracle verdict are no evidence, for or against."""
    world = sampling_world(tmp_path)
    silent: list[float | None] = [None] * 8
    world.memory.add([group_record(SIX.tasks["d"], list(RISING), silent, STEP, 5)])
    found = world.judge(Pause(task_ids=("a",), rationale=""), SIX)
    assert found.measured.before == pytest.approx((0 + 1 + 16 / 28 + 44 / 112) / 4)


def test_a_lucky_rollout_does_not_move_sampling(tmp_path: Path) -> None:
    """b's signal is one rollout of 8: a bootstrap sample misses it with (7/8)^8 = 0.34."""
    world = World(tmp_path, NOISE, p={"min_effective_tasks": 1.0})
    lucky = group_record(SIX.tasks["b"], [0.0] * 7 + [1.0], [0.1] * 7 + [0.9], STEP, 0)
    world.memory.add([lucky])
    for slot, task in enumerate("acd", 1):
        fill(world.memory, task, [1.0] * 8, slot=slot)
    found = world.judge(Boost(task_ids=("b",), rationale="", factor=10.0), SIX)
    assert found.measured.before == pytest.approx(7 / 28 / 4)
    assert found.measured.after == pytest.approx(7 / 28 * 10 / 13)
    assert found.measured.p_no_gain == pytest.approx((7 / 8) ** 8, abs=0.07)
    assert not found.accepted and "may be luck" in found.reason


def test_a_rollout_and_its_bootstrap_copy_are_no_pair_of_p_either(tmp_path: Path) -> None:
    """c carries the domain's signal; its replicates are those of a bootstrap written out in full."""
    world = World(tmp_path, NOISE, p={"min_effective_tasks": 1.0})
    fill(world.memory, "c", STEPPED)
    for slot, task in enumerate("abd", 1):
        fill(world.memory, task, [1.0] * 8, slot=slot)
    found = world.judge(Boost(task_ids=("c",), rationale="", factor=4.0), SIX)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(4000):
        drawn = rng.integers(8, size=8).tolist()
        pairs = [(i, j) for i, j in itertools.combinations(drawn, 2) if i != j]
        # Score and quality rise together, so a pair with different scores is informative.
        shares.append(np.mean([STEPPED[i] != STEPPED[j] for i, j in pairs]))
    wanted = (4 / 7 - 1 / 4) * np.quantile(shares, [0.05, 0.95])
    assert found.measured.gain == pytest.approx((4 / 7 - 1 / 4) * 16 / 28)
    assert found.measured.interval == pytest.approx(wanted, abs=0.012)


# --- how often it is fooled ----------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarser bootstrap, for simulations of many candidates."""
    monkeypatch.setattr(trial, "REPLICATES", 120)
    monkeypatch.setattr(trial, "GROUPS", 8)


def coins(request: Request, rng: np.random.Generator) -> str:
    """Quality, alpha and beta are independent: no rubric of them does better than chance."""
    words = [word for word in ("alpha", "beta") if rng.random() < 0.5]
    return f"{rng.random():.3f} {' '.join(words)}"


def telling(request: Request, rng: np.random.Generator) -> str:
    """Alpha is chance, beta goes with quality, though not always."""
    quality = rng.random()
    alpha = "alpha" if rng.random() < 0.5 else ""
    beta = "beta" if quality + 0.3 * rng.standard_normal() > 0.5 else ""
    return f"{quality:.3f} {alpha} {beta}"


def accepted(folder: Path, write: Write, update: Update, seed: int, revision: int, **e: Any) -> bool:
    return World(folder, write, seed=seed, **e).judge(update, revision=revision).accepted


def test_alpha_is_shared_by_looks_and_revisions(tmp_path: Path) -> None:
    def share(**evolver: Any) -> float:
        return World(tmp_path, coins, **evolver).critic.alpha

    assert share(alpha=0.1) == pytest.approx(0.1 / 4)
    assert share(alpha=0.1, extended_rollouts=32) == pytest.approx(0.1 / 2)
    assert share(alpha=0.1, extended_rollouts=32, max_revisions=0) == pytest.approx(0.1)
    assert share(alpha=0.1, max_revisions=4) == pytest.approx(0.1 / 10)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("update", "at_least"), [(ADD_BETA, 0.02), (mount(), 0.0)])
def test_a_candidate_without_effect_is_rarely_accepted(
    update: Update, at_least: float, tmp_path: Path
) -> None:
    """Two revisions with two looks each, no margin, alpha as wide as 0.4: at most 0.4 get through.

    Without sharing alpha over looks and revisions it would be more than half of them.
    """
    seeds = range(150)
    wide: dict[str, Any] = {"alpha": 0.4, "margin": 0.0}
    fooled = [
        any(accepted(tmp_path, coins, update, seed, revision, **wide) for revision in (0, 1))
        for seed in seeds
    ]
    assert at_least <= np.mean(fooled) <= 0.4


@pytest.mark.usefixtures("quick")
def test_under_the_quickstarts_rules_it_is_a_tenth_at_most(tmp_path: Path) -> None:
    fooled = [
        any(accepted(tmp_path, coins, ADD_BETA, seed, revision) for revision in (0, 1))
        for seed in range(150)
    ]
    assert np.mean(fooled) <= 0.1


def test_many_tasks_are_not_refused_for_the_luck_of_one() -> None:
    """Guidance lifts quality by half a standard deviation on each of 16 tasks; signal is beyond doubt."""
    rng = np.random.default_rng(0)

    def seen() -> Seen:
        signal = Replicates(0.2, 0.6, np.full(400, 0.2), 0.6 + rng.normal(0, 0.05, 400))
        plain_N, guided_N = rng.normal(0.5, 0.1, 32), rng.normal(0.55, 0.1, 32)
        top, top_guided = (np.sort(q_N)[-8:].mean() for q_N in (plain_N, guided_N))
        mean = Guard(float(plain_N.mean()), float(guided_N.mean()))
        return Seen(signal, {"mean": mean, "top": Guard(float(top), float(top_guided), strict=True)}, 64)

    looks = [accept_on_all({str(n): seen() for n in range(16)}, 0.025, 0.05) for _ in range(60)]
    assert np.mean([look.accepted for look in looks]) > 0.8


@pytest.mark.usefixtures("quick")
def test_several_tasks_do_not_make_it_easier_to_be_fooled(tmp_path: Path) -> None:
    three = harness_of(*(make_task(name) for name in "abc"))
    update = ADD_BETA.model_copy(update={"task_ids": ("a", "b", "c")})

    def fooled(seed: int) -> bool:
        world = World(tmp_path, coins, seed=seed, alpha=0.4, margin=0.0)
        return any(world.judge(update, three, revision).accepted for revision in (0, 1))

    assert np.mean([fooled(seed) for seed in range(60)]) <= 0.4


@pytest.mark.usefixtures("quick")
def test_power_grows_with_the_number_of_rollouts(tmp_path: Path) -> None:
    """A criterion that is truly good is found more often, the more rollouts it is measured on."""

    def power(n: int) -> float:
        one: dict[str, Any] = {"rollouts": n, "extended_rollouts": n, "max_revisions": 0}
        wins = [accepted(tmp_path, telling, ADD_BETA, seed, 0, **one) for seed in range(80)]
        return float(np.mean(wins))

    small, middle, large = power(8), power(16), power(48)
    assert small + 0.15 < middle and middle + 0.1 < large
    assert large > 0.9
