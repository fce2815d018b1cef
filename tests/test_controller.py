"""The controller: claims, submissions, advantages and step boundaries, without any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import tiny
from harnessrl.agents.evolver.critic import Critic
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.evolver.evolver import Look
from harnessrl.agents.policy import Sample
from harnessrl.agents.scoring.scorer import Scorer
from harnessrl.agents.usage import Usage
from harnessrl.memory.events import EventLog, fold_versions, read_log
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Group, Record, Refused, StepSummary
from harnessrl.memory.rollouts import RolloutStore
from harnessrl.prompts import guided_prompt
from harnessrl.specs.guidance import LinearFade, Shown, SuccessFade
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.loader import load_run_spec, load_task_file
from harnessrl.specs.schema import RunSpec
from harnessrl.specs.updates import Add, Mount, Pause, Resume, Retire, Update
from harnessrl.trainer.controller import Controller, StepStats
from harnessrl.trainer.group import Claim, Submission
from harnessrl.trainer.requests import RollbackRequest, UpdateRequest, hand_in, handed_in
from harnessrl.trainer.slots import ClaimError
from scripted import ScriptedPolicy, by_index, says

R = TypeVar("R", bound=Record)
STATS = StepStats(loss=0.5, grad_norm=1.0, clip_share=0.0, kl=None, plain_logprob_guided=None)
CHECKLIST = ("name the fox", "be brief")


class NoIndex:
    """Semantic search plays no part here."""

    def add(self, records: Iterable[AnyRecord]) -> None:
        pass


class ScriptedEvolver:
    """Accepts what it is told to, at the steps it is told to."""

    def __init__(self, plan: dict[int, list[Update]]) -> None:
        self.plan = plan
        self.looked: list[int] = []
        self.seen: list[int] = []  # the harness versions it was shown

    def look(self, step: int, harness: HarnessState, say: Callable[[str], None]) -> Look:
        self.looked.append(step)
        self.seen.append(harness.version)
        decisions = [
            Decision(
                id=f"u-{step}-{n}",
                step=step,
                harness_version=harness.version,
                diagnosis_id="d",
                task_id=update.task_ids[0],
                revision=0,
                update=update,
                accepted=True,
                reason="told to",
                measured=None,
                retrieved=[],
            )
            for n, update in enumerate(self.plan.get(step, []))
        ]
        return Look([*decisions], decisions)


class World:
    """A controller with everything around it."""

    def __init__(self, folder: Path, plan: dict[int, list[Update]] | None = None, **changes: Any) -> None:
        paths = tiny.write_spec(folder / "spec", "nowhere")
        self.spec: RunSpec = load_run_spec(paths.spec, overrides=changes).spec
        file = load_task_file(folder / "spec" / "texts" / "animals.yaml")
        self.tasks = {task.id: task for task in file.train}
        self.usage = Usage()
        self.log = EventLog(folder / "events.jsonl")
        self.rollouts = RolloutStore(folder / "rollouts")
        scorer = Scorer(self.spec.oracle, self.usage, self.spec.reward.max_dropped)
        self.memory = Memory(self.rollouts, NoIndex(), scorer)  # type: ignore[arg-type]
        self.evolver = ScriptedEvolver(plan or {})
        self.exported: list[int] = []
        self.policy = ScriptedPolicy(by_index(TEXTS))
        self.requests = folder / "requests"
        self.said: list[str] = []
        self.controller = Controller(
            self.spec,
            [HarnessState(self.tasks)],
            scorer,
            self.usage,
            self.memory,
            self.log,
            Critic(self.policy, scorer, self.memory, self.spec),
            self.evolver,  # type: ignore[arg-type]
            lambda: handed_in(self.requests),
            lambda harness: self.exported.append(harness.version),
        )

    def claims(self, step: int) -> list[Claim]:
        return self.controller.slots.claim(step, range(self.spec.engine.tasks_per_step))

    def play(self, step: int) -> tuple[list[Claim], dict[str, Any]]:
        """One whole step with made-up responses."""
        claims = self.claims(step)
        self.controller.slots.submit(respond(claims))
        self.controller.slots.advantages(step)
        self.policy.version = step + 1
        return claims, self.controller.step_done(step, STATS, self.said.append, self.said.append)

    def ask(self, update: Update, name: str = "1", author: str = "ann", force: bool = False) -> None:
        """Hand an update in, as `harnessrl harness apply` does."""
        hand_in(self.requests, UpdateRequest(id=name, author=author, update=update, force=force))

    def ask_back(self, version: int, name: str = "1", author: str = "ann") -> None:
        """Ask for an earlier version, as `harnessrl harness rollback` does."""
        hand_in(self.requests, RollbackRequest(id=name, author=author, version=version))

    def logged(self, kind: type[R]) -> list[R]:
        """The records of one kind."""
        return [record for record in read_log(self.log.path) if isinstance(record, kind)]


TEXTS = ["see the fox jump over", "no", "a fox sat", "7 of them were here"]


def respond(claims: Sequence[Claim]) -> list[Submission]:
    return [
        Submission(c.step, c.slot, i, Sample(TEXTS[(i + c.slot) % 4], (i, 1, 2), True))
        for c in claims
        for i in range(len(c.requests))
    ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def about(*task_ids: str) -> dict[str, Any]:
    return {"task_ids": task_ids, "rationale": "because"}


# --- claim ----------------------------------------------------------------------------------------


def test_a_claim_says_what_a_slot_is(world: World) -> None:
    claims = world.claims(0)
    assert [c.slot for c in claims] == [0, 1]
    for claim in claims:
        task = world.controller.harness.tasks[claim.task_id]
        assert (claim.step, claim.harness_version, claim.prompt) == (0, 0, task.prompt)
        assert claim.guided == (False,) * 4
        assert claim.shown == ((),) * 4
        assert [r.prompt for r in claim.requests] == [task.prompt] * 4
        assert len({r.key for r in claim.requests}) == 4
    keys = {r.key for claim in [*claims, *world.claims(1)] for r in claim.requests}
    assert len(keys) == 16  # no two rollouts share a random stream


def test_claiming_again_gives_the_same_answer(world: World) -> None:
    first = world.claims(0)
    assert world.claims(0) == first
    world.controller.slots.submit(respond(first))
    assert world.claims(0) == first


def test_slots_may_be_claimed_in_any_order_and_number(world: World, tmp_path: Path) -> None:
    together = world.claims(3)
    apart = World(tmp_path / "other").controller
    assert apart.slots.claim(3, [1]) == together[1:]
    assert apart.slots.claim(3, [0, 1]) == together
    assert apart.slots.claim(3, []) == []


def test_claims_follow_the_seed_and_nothing_else(world: World, tmp_path: Path) -> None:
    def tasks(other: World) -> list[str]:
        return [c.task_id for step in range(12) for c in other.claims(step)]

    assert tasks(World(tmp_path / "same")) == tasks(world)
    assert tasks(World(tmp_path / "seed", seed=4)) != tasks(world)


def test_a_slot_beyond_the_step_is_refused(world: World) -> None:
    for slot in (2, -1):
        with pytest.raises(ClaimError):
            world.controller.slots.claim(0, [slot])


# --- submit ---------------------------------------------------------------------------------------


def test_submitting_again_changes_nothing(world: World) -> None:
    samples = respond(world.claims(0))
    world.controller.slots.submit(samples[:5])
    world.controller.slots.submit(samples)
    before = world.controller.slots.advantages(0)
    calls = dict(world.usage.judge_calls)
    assert world.controller.slots.submit(samples) == 0
    other = [Submission(s.step, s.slot, s.sample, Sample("z", (9,), False)) for s in samples]
    with pytest.raises(ClaimError, match="another response was handed in"):
        world.controller.slots.submit(other)
    assert np.array_equal(world.controller.slots.advantages(0), before)
    assert world.usage.judge_calls == calls  # nothing was judged twice
    world.controller.step_done(0, STATS)
    assert {r.response for r in world.rollouts.read(0)} == set(TEXTS)


def test_order_and_batching_of_submissions_do_not_matter(world: World, tmp_path: Path) -> None:
    world.controller.slots.submit(respond(world.claims(0)))
    other = World(tmp_path / "other")
    for sample in reversed(respond(other.claims(0))):
        other.controller.slots.submit([sample])
    assert np.array_equal(other.controller.slots.advantages(0), world.controller.slots.advantages(0))


@pytest.mark.parametrize(
    ("step", "slot", "sample"), [(0, 2, 0), (1, 0, 0), (0, 0, 4), (0, 0, -1), (-1, 0, 0)]
)
def test_what_nobody_claimed_is_refused(world: World, step: int, slot: int, sample: int) -> None:
    world.claims(0)
    with pytest.raises(ClaimError, match="not claimed"):
        world.controller.slots.submit([Submission(step, slot, sample, Sample("x", (1,), True))])


def test_each_group_is_judged_when_it_is_complete(world: World) -> None:
    samples = respond(world.claims(0))
    world.controller.slots.submit(samples[:3])
    assert world.usage.judge_calls["train"] == 0
    world.controller.slots.submit(samples[3:4])
    assert world.usage.judge_calls["train"] > 0


# --- advantages -----------------------------------------------------------------------------------


def test_advantages_before_all_rollouts_are_in(world: World) -> None:
    with pytest.raises(ClaimError, match="nothing was claimed"):
        world.controller.slots.advantages(0)
    samples = respond(world.claims(0))
    with pytest.raises(ClaimError, match="4 rollouts missing"):
        world.controller.slots.advantages(0)
    world.controller.slots.submit(samples[:-1])
    with pytest.raises(ClaimError, match="slot 1: 1 rollouts missing"):
        world.controller.slots.advantages(0)
    world.controller.slots.submit(samples[-1:])
    assert world.controller.slots.advantages(0).shape == (2, 4)


def test_advantages_are_those_of_the_rubric(world: World) -> None:
    claims = world.claims(0)
    world.controller.slots.submit(respond(claims))
    world.controller.step_done(0, STATS)
    for group in groups(world):
        rewards = np.array(group.rewards, dtype=float)
        expected = (rewards - rewards.mean()) / rewards.std(ddof=1)
        rollouts = world.rollouts.group(0, group.slot)
        assert [r.advantage for r in rollouts] == pytest.approx(expected.tolist())
        assert [r.reward for r in rollouts] == group.rewards
        for rollout in rollouts:
            assert rollout.verdicts == {c: met[rollout.sample] for c, met in group.met.items()}


def groups(world: World) -> list[Group]:
    return [r for r in read_log(world.log.path) if isinstance(r, Group)]


def test_rewards_by_hand(world: World) -> None:
    """Rubric of `fox`: e +1, three words +2, a digit -1; positive points 3."""
    by_hand = {TEXTS[0]: 1.0, TEXTS[1]: 0.0, TEXTS[2]: 2 / 3, TEXTS[3]: 2 / 3}
    for step in range(6):
        world.play(step)
    checked = 0
    for step in range(6):
        for rollout in world.rollouts.read(step):
            if rollout.task_id != "letters":
                assert rollout.reward == pytest.approx(by_hand[rollout.response])
                checked += 1
    assert checked >= 16


# --- step_done ------------------------------------------------------------------------------------


def test_a_step_is_not_done_before_it_is_complete(world: World) -> None:
    with pytest.raises(ClaimError):
        world.controller.step_done(0, STATS)
    world.controller.slots.submit(respond(world.claims(0))[:-1])
    with pytest.raises(ClaimError):
        world.controller.step_done(0, STATS)
    assert read_log(world.log.path) == []  # nothing of a refused step is on record


def test_records_of_a_step(world: World) -> None:
    claims, metrics = world.play(0)
    records = read_log(world.log.path)
    assert [r.id for r in records] == ["g-000000-0", "g-000000-1", "s-000000"]
    assert [r.task_id for r in records if isinstance(r, Group)] == [c.task_id for c in claims]
    assert all((r.step, r.harness_version) == (0, 0) for r in records)
    summary = records[-1]
    assert isinstance(summary, StepSummary)
    assert summary.metrics == {k: v for k, v in metrics.items() if k != "seconds"}
    assert metrics["step"] == 0
    assert metrics["loss"] == 0.5
    assert metrics["judge_calls"]["train"] == world.usage.judge_calls["train"] > 0
    rollouts = world.rollouts.read(0)
    assert [(r.slot, r.sample) for r in rollouts] == [(s, i) for s in range(2) for i in range(4)]
    assert world.memory.records == records


def test_looks_are_spaced_by_every(tmp_path: Path) -> None:
    world = World(tmp_path, evolver={"every": 3}, engine={"steps": 9})
    for step in range(9):
        world.play(step)
    assert world.evolver.looked == [2, 5]  # after the last step no change could act any more


def test_without_an_evolver_the_harness_stays(world: World) -> None:
    world.controller.evolver = None
    for step in range(3):
        world.play(step)
    assert world.controller.harness.version == 0
    assert world.exported == []


# --- updates at step boundaries -------------------------------------------------------------------


def all_tasks(world: World) -> tuple[str, ...]:
    return tuple(world.controller.harness.tasks)


def test_an_update_changes_the_next_step_only(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    mount = Mount(lines=CHECKLIST, share=0.5, **about(*ids))
    world = World(tmp_path, {1: [mount]})
    for step in range(2):
        claims, metrics = world.play(step)
        assert [c.harness_version for c in claims] == [0, 0]
        assert metrics["harness_version"] == 0
        assert metrics["guided_share"] == 0
    claims, metrics = world.play(2)
    assert [c.harness_version for c in claims] == [1, 1]
    assert metrics["harness_version"] == 1
    assert metrics["guided_share"] == 0.5
    assert world.exported == [1]
    for record in read_log(world.log.path):
        if isinstance(record, Group):
            assert record.harness_version == (0 if record.step < 2 else 1)
            assert any(record.guided) == (record.step == 2)
    for step, version in ((0, 0), (1, 0), (2, 1)):
        assert {r.harness_version for r in world.rollouts.read(step)} == {version}


def test_a_step_claimed_before_keeps_its_harness(tmp_path: Path) -> None:
    """Whatever was claimed is not changed by an update that is accepted meanwhile."""
    world = World(tmp_path, {0: [Mount(lines=CHECKLIST, share=0.5, **about("fox", "dog"))]})
    early = world.controller.slots.claim(1, [0])
    world.play(0)
    assert world.controller.harness.version == 1
    assert world.controller.slots.claim(1, [0]) == early
    assert early[0].harness_version == 0


def test_a_group_is_judged_by_the_rubric_it_was_claimed_under(tmp_path: Path) -> None:
    """Groups carry (step, harness_version): the verdicts must be those of that version's rubric."""
    task = load_task_file(tiny.write_spec(tmp_path / "x", "m").folder / "texts" / "animals.yaml")
    extra = task.shared_pool.criteria[0]
    ids = ("fox", "dog", "letters", "words")
    world = World(tmp_path, {0: [Add(criterion=extra, **about(*ids))]})
    early = world.claims(1)
    world.play(0)
    world.controller.slots.submit(respond(early))
    world.controller.step_done(1, STATS)
    for group in groups(world):
        assert group.harness_version == 0
        assert extra.id not in group.met, "judged by version 1's rubric, recorded as version 0"


def test_accepted_updates_are_recorded_as_one_version(tmp_path: Path) -> None:
    updates: list[Update] = [
        Mount(lines=CHECKLIST, share=0.5, **about("fox")),
        Pause(**about("dog")),
    ]
    world = World(tmp_path, {0: updates})
    seed = world.controller.harness
    world.play(0)
    (accepted,) = [r for r in read_log(world.log.path) if isinstance(r, Accepted)]
    assert (accepted.id, accepted.step, accepted.harness_version) == ("h-000001", 0, 1)
    assert accepted.updates == updates
    assert accepted.decision_ids == ["u-0-0", "u-0-1"]
    # The log folds to the harness.
    assert fold_versions(world.tasks, read_log(world.log.path)) == world.controller.versions
    assert world.controller.versions == [seed, world.controller.harness]


def test_the_rubric_of_the_next_step_is_the_new_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    gone = world.controller.harness.tasks["letters"].rubric[0]
    world.evolver.plan = {0: [Retire(criterion_id=gone.id, **about("letters"))]}
    seen = set()
    for step in range(8):
        claims, _ = world.play(step)
        seen |= {(c.task_id, step > 0) for c in claims}
    for group in groups(world):
        if group.task_id == "letters":
            assert (gone.id in group.met) == (group.step == 0)
    assert ("letters", True) in seen


# --- guidance -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "size", "guided"), [(0.5, 4, 2), (0.5, 5, 2), (0.9, 4, 3), (0.99, 8, 7), (0.1, 4, 0)]
)
def test_how_many_rollouts_carry_guidance(share: float, size: int, guided: int, tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    world = World(
        tmp_path,
        {0: [Mount(lines=CHECKLIST, share=share, **about(*ids))]},
        engine={"group_size": size},
    )
    world.play(0)
    for claim in world.claims(1):
        assert claim.guided == (True,) * guided + (False,) * (size - guided)
        parts = (Shown("checklist", CHECKLIST),)
        assert claim.shown == (parts,) * guided + ((),) * (size - guided)
        with_guidance = guided_prompt(claim.prompt, parts)
        assert with_guidance != claim.prompt
        assert CHECKLIST[0] in with_guidance
        for request, is_guided in zip(claim.requests, claim.guided, strict=True):
            assert request.prompt == (with_guidance if is_guided else claim.prompt)


def test_guidance_is_on_record_where_it_was_shown(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    world = World(tmp_path, {0: [Mount(lines=CHECKLIST, share=0.5, **about(*ids))]})
    world.play(0)
    world.play(1)
    for rollout in world.rollouts.read(1):
        assert rollout.guided == (rollout.sample < 2)
        assert rollout.guidance == (CHECKLIST if rollout.guided else ())


def test_a_ramp_shows_rollouts_more_or_less_of_it_and_is_on_record(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    ramp = Mount(field="outline", lines="rubric", share="ramp", **about(*ids))
    world = World(tmp_path, {0: [ramp]})
    world.play(0)
    claims, _ = world.play(1)
    for claim in claims:
        n = len(world.controller.harness.rubric(claim.task_id))
        wanted = [round(n * ratio) for ratio in (1, 2 / 3, 1 / 3, 0)]
        rollouts = world.rollouts.group(1, claim.slot)
        assert [len(r.guidance) for r in rollouts] == wanted
        assert [r.guided for r in rollouts] == [bool(count) for count in wanted]
        for rollout, parts, request in zip(rollouts, claim.shown, claim.requests, strict=True):
            assert list(rollout.guidance) == [line for part in parts for line in part.as_lines()]
            assert request.prompt == guided_prompt(claim.prompt, parts)


def test_guidance_fades_from_the_step_it_acts_from(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    fade = LinearFade(kind="linear", steps=2)
    world = World(tmp_path, {1: [Mount(lines=CHECKLIST, share=0.5, fade=fade, **about(*ids))]})
    guided = [world.play(step)[1]["guided_share"] for step in range(5)]
    assert guided == [0.0, 0.0, 0.5, 0.25, 0.0]


def test_guidance_goes_once_the_task_is_solved_without_it(tmp_path: Path) -> None:
    """Plain rollouts of a task reach the reward in two groups since the mounting."""
    ids = ("fox", "dog", "letters", "words")
    fade = SuccessFade(kind="success", reward=0.0, groups=2)
    world = World(tmp_path, {0: [Mount(lines=CHECKLIST, share=0.5, fade=fade, **about(*ids))]})
    visits: dict[str, list[bool]] = {}
    for step in range(6):
        for claim in world.play(step)[0]:
            if step > 0:
                visits.setdefault(claim.task_id, []).append(any(claim.guided))
    assert any(len(guided) > 2 for guided in visits.values())
    for guided in visits.values():
        assert guided == [True, True, False, False, False][: len(guided)]


def test_rollouts_that_give_their_guidance_away_are_counted(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    checklist = ("you should see the fox jump over",)  # what half of the guided rollouts will say
    world = World(tmp_path, {0: [Mount(lines=checklist, share=0.5, **about(*ids))]})
    _, metrics = world.play(0)
    assert metrics["gave_away_share"] is None  # nobody could
    _, metrics = world.play(1)
    told = [r for r in world.rollouts.read(1) if r.gave_away]
    assert told and all(r.guided and r.response == TEXTS[0] for r in told)
    assert all(r.gave_away for r in world.rollouts.read(1) if r.guided and r.response == TEXTS[0])
    assert metrics["gave_away_share"] == len(told) / 4


def test_a_guided_rollout_teaches_only_when_it_was_good(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    plan: dict[int, list[Update]] = {0: [Mount(lines=CHECKLIST, share=0.5, **about(*ids))]}
    careful = World(tmp_path / "a", plan)
    trusting = World(tmp_path / "b", plan, interfaces={"g": {"mismatch": "ignore"}})
    for world in (careful, trusting):
        world.play(0)
        world.controller.slots.submit(respond(world.claims(1)))
    a, b = careful.controller.slots.advantages(1), trusting.controller.slots.advantages(1)
    assert (b[:, :2] < 0).any()
    assert np.array_equal(a[:, :2], np.maximum(b[:, :2], 0))
    assert np.array_equal(a[:, 2:], b[:, 2:])


# --- what people ask for --------------------------------------------------------------------------


def test_a_forced_update_acts_from_the_next_step_on_in_its_authors_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.play(0)
    pause = Pause(**about("dog"))
    world.ask(pause, author="ann", force=True)
    assert world.controller.harness.version == 0  # between steps only
    claims, _ = world.play(1)
    assert {claim.harness_version for claim in claims} == {0}
    (decision,), (accepted,) = world.logged(Decision), world.logged(Accepted)
    assert (decision.author, decision.request, decision.diagnosis_id) == ("ann", "1", None)
    assert decision.accepted and (decision.reason, decision.measured) == ("not measured", None)
    assert (accepted.author, accepted.request, accepted.step) == ("ann", "1", 1)
    assert (accepted.updates, accepted.decision_ids) == ([pause], [decision.id])
    assert world.controller.harness.of("dog").paused and world.exported == [1]
    assert world.policy.requests == []
    claims, metrics = world.play(2)
    assert {claim.harness_version for claim in claims} == {1} and metrics["paused_tasks"] == 1
    assert "ann" in " ".join(world.said)


def test_an_update_without_force_is_measured_and_the_decision_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.play(0)
    world.ask(Add(criterion=says("no", 2.0), **about("fox")), "1")
    world.ask(Add(criterion=says("zebra", 0.1), **about("fox")), "2")  # no response says it
    world.play(1)
    first, second = world.logged(Decision)
    for decision in (first, second):
        assert decision.measured is not None and decision.measured.rollouts >= 8
        assert f"gain {decision.measured.gain:+.2f}" in decision.reason
        assert (decision.author, decision.diagnosis_id) == ("ann", None)
    assert not second.accepted
    assert [a.request for a in world.logged(Accepted)] == ["1"] * first.accepted
    assert world.usage.judge_calls["critic"] > 0
    keys = [request.key for request in world.policy.requests]
    assert len(set(keys)) == len(keys)  # no two measurements share their rollouts


def test_an_update_of_a_person_that_cannot_be_applied_is_rejected(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(Resume(**about("fox")), "1", force=True)
    world.ask(Pause(**about("nowhere")), "2")
    world.play(0)
    first, second = world.logged(Decision)
    assert not first.accepted and first.reason == "cannot be applied: resume: fox is not paused"
    assert not second.accepted and "no training task 'nowhere'" in second.reason
    assert world.controller.harness.version == 0


def test_a_person_may_name_domains_of_tasks(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(Pause(domains=("animals",), rationale=""), "1", force=True)
    world.ask(Pause(tags=("hard",), rationale=""), "2", force=True)
    world.play(0)
    (accepted,), (refused,) = world.logged(Accepted), world.logged(Refused)
    assert accepted.updates == [Pause(task_ids=("fox", "dog"), rationale="")]  # as it acted
    assert (refused.request, refused.author) == ("2", "ann")
    assert refused.reason == "pause: no training task with tag 'hard'; allowed: none"


def test_a_rollback_makes_a_new_version_with_the_earlier_content(tmp_path: Path) -> None:
    world = World(
        tmp_path, {0: [Mount(lines=CHECKLIST, share=0.5, **about("fox"))], 1: [Pause(**about("dog"))]}
    )
    for step in range(3):
        world.play(step)
    world.ask_back(1, author="ben")
    world.play(3)
    zero, one, two, three = world.controller.versions
    assert (three.version, three.changes) == (3, one.changes) and two.changes != one.changes
    accepted = world.logged(Accepted)[-1]
    assert (accepted.rolled_back_to, accepted.harness_version, accepted.step) == (1, 3, 3)
    assert (accepted.author, accepted.request) == ("ben", "1")
    assert accepted.updates == [] and accepted.decision_ids == []
    assert world.exported == [1, 2, 3]
    assert fold_versions(world.tasks, read_log(world.log.path)) == [zero, one, two, three]
    assert {claim.harness_version for claim in world.claims(4)} == {3}


@pytest.mark.parametrize("version", [1, 99])
def test_a_rollback_to_a_version_that_is_not_there_is_refused(version: int, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask_back(version)
    world.play(0)
    (refused,) = world.logged(Refused)
    assert (refused.author, refused.request, refused.step) == ("ann", "1", 0)
    assert f"no version {version}" in refused.reason
    assert world.controller.harness.version == 0 and world.logged(Accepted) == []


def test_each_request_is_answered_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(Pause(**about("dog")), "1", force=True)
    world.ask(Resume(**about("fox")), "2", force=True)  # cannot be applied
    world.ask_back(0, "3")
    world.ask_back(9, "4")
    for step in range(4):
        world.play(step)
    assert [r.request for r in world.logged(Decision)] == ["1", "2"]
    assert [r.request for r in world.logged(Accepted)] == ["1", "3"]
    assert [r.request for r in world.logged(Refused)] == ["4"]
    assert {r.step for kind in (Decision, Accepted, Refused) for r in world.logged(kind)} == {0}
    assert len({r.id for r in world.memory.records}) == len(world.memory.records)


def test_the_evolver_looks_at_what_people_changed(tmp_path: Path) -> None:
    world = World(tmp_path, {0: [Pause(**about("fox"))]})
    world.ask(Pause(**about("dog")), force=True)
    world.play(0)
    assert world.evolver.seen == [1]
    assert [a.author for a in world.logged(Accepted)] == ["ann", "evolver"]
    assert world.controller.harness.version == 2


def test_people_are_answered_without_an_evolver_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.controller.evolver = None
    world.ask(Pause(**about("dog")), force=True)
    world.play(0)
    assert world.controller.harness.of("dog").paused


def test_nothing_is_answered_after_the_last_step(tmp_path: Path) -> None:
    world = World(tmp_path, engine={"steps": 2})
    world.play(0)
    world.ask(Pause(**about("dog")), "1", force=True)
    world.ask_back(9, "2")
    world.play(1)
    assert world.controller.harness.version == 0
    assert not any(world.logged(kind) for kind in (Decision, Accepted, Refused))


def test_a_file_that_is_no_request_is_passed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(Pause(**about("dog")), "2", force=True)
    for name, text in (("1", "{"), ("3", "{}"), ("4", '{"kind": "update", "id": "4"}')):
        (world.requests / f"{name}.json").write_text(text)
    world.play(0)
    assert [r.request for r in world.logged(Decision)] == ["2"] and world.logged(Refused) == []


# --- the oracle's share ---------------------------------------------------------------------------


def test_the_oracle_looks_at_a_share_of_groups(tmp_path: Path) -> None:
    world = World(tmp_path, oracle={"share": 0.5})
    for step in range(20):
        world.play(step)
    known = [all(q is not None for q in g.quality) for g in groups(world)]
    asked_none = [all(q is None for q in g.quality) for g in groups(world)]
    assert [not k for k in known] == asked_none
    assert 8 < sum(known) < 32
    for group, asked in zip(groups(world), known, strict=True):
        if not asked:
            assert group.pairs["unknown"] == 6
            assert group.pairs["neutral"] == 0  # no answer is no tie


def test_without_an_oracle_nothing_is_concluded(tmp_path: Path) -> None:
    world = World(tmp_path, oracle={"kind": "none"})
    _, metrics = world.play(0)
    assert metrics["quality_mean"] is None
    assert metrics["signal_rate"] is None
    assert sum(metrics["collapse"].values()) == 2  # collapse is visible all the same
