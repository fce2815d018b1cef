"""The controller: claims, submissions, advantages and step boundaries, without any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.evolver.evolver import Look
from harnessrl.agents.policy import Sample
from harnessrl.agents.scoring.judge import Scorer
from harnessrl.agents.usage import Usage
from harnessrl.memory.events import EventLog, read_log
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Group, StepSummary
from harnessrl.memory.rollouts import RolloutStore
from harnessrl.prompts import guided_prompt
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.loader import load_run_spec, load_task_file
from harnessrl.specs.schema import RunSpec
from harnessrl.specs.updates import Add, Mount, Pause, Retire, Update
from harnessrl.trainer.controller import (
    Claim,
    ClaimError,
    Controller,
    StepStats,
    Submission,
)

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

    def look(self, step: int, harness: HarnessState, say: Callable[[str], None]) -> Look:
        self.looked.append(step)
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
        tasks = {t.id: t for t in load_task_file(folder / "spec" / "tasks.yaml").train}
        self.usage = Usage()
        self.log = EventLog(folder / "events.jsonl")
        self.rollouts = RolloutStore(folder / "rollouts")
        scorer = Scorer(self.spec.oracle, self.usage, self.spec.reward.max_dropped)
        self.memory = Memory(self.rollouts, NoIndex(), scorer)  # type: ignore[arg-type]
        self.evolver = ScriptedEvolver(plan or {})
        self.exported: list[int] = []
        self.controller = Controller(
            self.spec,
            HarnessState(tasks),
            scorer,
            self.usage,
            self.memory,
            self.log,
            self.evolver,  # type: ignore[arg-type]
            lambda harness: self.exported.append(harness.version),
        )

    def claims(self, step: int) -> list[Claim]:
        return self.controller.claim(step, range(self.spec.engine.tasks_per_step))

    def play(self, step: int) -> tuple[list[Claim], dict[str, Any]]:
        """One whole step with made-up responses."""
        claims = self.claims(step)
        self.controller.submit(respond(claims))
        self.controller.advantages(step)
        return claims, self.controller.step_done(step, STATS)


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
        assert claim.guidance is None
        assert [r.prompt for r in claim.requests] == [task.prompt] * 4
        assert len({r.key for r in claim.requests}) == 4
    keys = {r.key for claim in [*claims, *world.claims(1)] for r in claim.requests}
    assert len(keys) == 16  # no two rollouts share a random stream


def test_claiming_again_gives_the_same_answer(world: World) -> None:
    first = world.claims(0)
    assert world.claims(0) == first
    world.controller.submit(respond(first))
    assert world.claims(0) == first


def test_slots_may_be_claimed_in_any_order_and_number(world: World, tmp_path: Path) -> None:
    together = world.claims(3)
    apart = World(tmp_path / "other").controller
    assert apart.claim(3, [1]) == together[1:]
    assert apart.claim(3, [0, 1]) == together
    assert apart.claim(3, []) == []


def test_claims_follow_the_seed_and_nothing_else(world: World, tmp_path: Path) -> None:
    def tasks(other: World) -> list[str]:
        return [c.task_id for step in range(12) for c in other.claims(step)]

    assert tasks(World(tmp_path / "same")) == tasks(world)
    assert tasks(World(tmp_path / "seed", seed=4)) != tasks(world)


def test_a_slot_beyond_the_step_is_refused(world: World) -> None:
    for slot in (2, -1):
        with pytest.raises(ClaimError):
            world.controller.claim(0, [slot])


# --- submit ---------------------------------------------------------------------------------------


def test_submitting_again_changes_nothing(world: World) -> None:
    samples = respond(world.claims(0))
    world.controller.submit(samples[:5])
    world.controller.submit(samples)
    before = world.controller.advantages(0)
    calls = dict(world.usage.judge_calls)
    other = [Submission(s.step, s.slot, s.sample, Sample("z", (9,), False)) for s in samples]
    world.controller.submit(other)
    assert np.array_equal(world.controller.advantages(0), before)
    assert world.usage.judge_calls == calls  # nothing was judged twice
    world.controller.step_done(0, STATS)
    assert {r.response for r in world.rollouts.read(0)} == set(TEXTS)


def test_order_and_batching_of_submissions_do_not_matter(world: World, tmp_path: Path) -> None:
    world.controller.submit(respond(world.claims(0)))
    other = World(tmp_path / "other")
    for sample in reversed(respond(other.claims(0))):
        other.controller.submit([sample])
    assert np.array_equal(other.controller.advantages(0), world.controller.advantages(0))


@pytest.mark.parametrize(
    ("step", "slot", "sample"), [(0, 2, 0), (1, 0, 0), (0, 0, 4), (0, 0, -1), (-1, 0, 0)]
)
def test_what_nobody_claimed_is_refused(world: World, step: int, slot: int, sample: int) -> None:
    world.claims(0)
    with pytest.raises(ClaimError, match="not claimed"):
        world.controller.submit([Submission(step, slot, sample, Sample("x", (1,), True))])


def test_each_group_is_judged_when_it_is_complete(world: World) -> None:
    samples = respond(world.claims(0))
    world.controller.submit(samples[:3])
    assert world.usage.judge_calls["train"] == 0
    world.controller.submit(samples[3:4])
    assert world.usage.judge_calls["train"] > 0


# --- advantages -----------------------------------------------------------------------------------


def test_advantages_before_all_rollouts_are_in(world: World) -> None:
    with pytest.raises(ClaimError, match="nothing was claimed"):
        world.controller.advantages(0)
    samples = respond(world.claims(0))
    with pytest.raises(ClaimError, match="4 rollouts missing"):
        world.controller.advantages(0)
    world.controller.submit(samples[:-1])
    with pytest.raises(ClaimError, match="slot 1: 1 rollouts missing"):
        world.controller.advantages(0)
    world.controller.submit(samples[-1:])
    assert world.controller.advantages(0).shape == (2, 4)


def test_advantages_are_those_of_the_rubric(world: World) -> None:
    claims = world.claims(0)
    world.controller.submit(respond(claims))
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
    world.controller.submit(respond(world.claims(0))[:-1])
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
    mount = Mount(checklist=CHECKLIST, share=0.5, **about(*ids))
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
    world = World(tmp_path, {0: [Mount(checklist=CHECKLIST, share=0.5, **about("fox", "dog"))]})
    early = world.controller.claim(1, [0])
    world.play(0)
    assert world.controller.harness.version == 1
    assert world.controller.claim(1, [0]) == early
    assert early[0].harness_version == 0


def test_a_group_is_judged_by_the_rubric_it_was_claimed_under(tmp_path: Path) -> None:
    """Groups carry (step, harness_version): the verdicts must be those of that version's rubric."""
    task = load_task_file(tiny.write_spec(tmp_path / "x", "m").folder / "tasks.yaml")
    extra = task.shared_pool.criteria[0]
    ids = ("fox", "dog", "letters", "words")
    world = World(tmp_path, {0: [Add(criterion=extra, **about(*ids))]})
    early = world.claims(1)
    world.play(0)
    world.controller.submit(respond(early))
    world.controller.step_done(1, STATS)
    for group in groups(world):
        assert group.harness_version == 0
        assert extra.id not in group.met, "judged by version 1's rubric, recorded as version 0"


def test_accepted_updates_are_recorded_as_one_version(tmp_path: Path) -> None:
    updates: list[Update] = [
        Mount(checklist=CHECKLIST, share=0.5, **about("fox")),
        Pause(**about("dog")),
    ]
    world = World(tmp_path, {0: updates})
    seed = world.controller.harness
    world.play(0)
    (accepted,) = [r for r in read_log(world.log.path) if isinstance(r, Accepted)]
    assert (accepted.id, accepted.step, accepted.harness_version) == ("h-000001", 0, 1)
    assert accepted.updates == updates
    assert accepted.decision_ids == ["u-0-0", "u-0-1"]
    assert apply(seed, accepted.updates) == world.controller.harness  # the fold of the log


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
        {0: [Mount(checklist=CHECKLIST, share=share, **about(*ids))]},
        engine={"group_size": size},
    )
    world.play(0)
    for claim in world.claims(1):
        assert claim.guided == (True,) * guided + (False,) * (size - guided)
        assert claim.guidance == CHECKLIST
        with_guidance = guided_prompt(claim.prompt, CHECKLIST)
        assert with_guidance != claim.prompt
        assert CHECKLIST[0] in with_guidance
        for request, is_guided in zip(claim.requests, claim.guided, strict=True):
            assert request.prompt == (with_guidance if is_guided else claim.prompt)


def test_guidance_is_on_record_where_it_was_shown(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    world = World(tmp_path, {0: [Mount(checklist=CHECKLIST, share=0.5, **about(*ids))]})
    world.play(0)
    world.play(1)
    for rollout in world.rollouts.read(1):
        assert rollout.guided == (rollout.sample < 2)
        assert rollout.guidance == (CHECKLIST if rollout.guided else None)


def test_a_guided_rollout_teaches_only_when_it_was_good(tmp_path: Path) -> None:
    ids = ("fox", "dog", "letters", "words")
    plan: dict[int, list[Update]] = {0: [Mount(checklist=CHECKLIST, share=0.5, **about(*ids))]}
    careful = World(tmp_path / "a", plan)
    trusting = World(tmp_path / "b", plan, interfaces={"g": {"mismatch": "ignore"}})
    for world in (careful, trusting):
        world.play(0)
        world.controller.submit(respond(world.claims(1)))
    a, b = careful.controller.advantages(1), trusting.controller.advantages(1)
    assert (b[:, :2] < 0).any()
    assert np.array_equal(a[:, :2], np.maximum(b[:, :2], 0))
    assert np.array_equal(a[:, 2:], b[:, 2:])


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
