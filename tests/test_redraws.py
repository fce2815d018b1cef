"""Slots whose rewards tie are filled again: bounded, the batch never shrinks, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from harnessrl.agents.policy import Sample
from harnessrl.memory.records import Group
from harnessrl.specs.updates import Pause
from harnessrl.trainer import train
from harnessrl.trainer.engine import Example, UpdateStats
from harnessrl.trainer.group import Claim, SlotGroup, Submission
from harnessrl.trainer.sim.engine import SimEngine
from harnessrl.trainer.slots import ClaimError, Slots
from hypothesis import given
from hypothesis import strategies as st
from test_controller import STATS, World

SLOTS, GROUP = 2, 4
SPREAD = ["no", "a fox sees", "see", "no"]
LOW, MID, HIGH = "no", "see", "a fox sees"


def answers(claims: Sequence[Claim], text: Callable[[Claim, int], str]) -> list[Submission]:
    return [
        Submission(c.step, c.slot, i, Sample(text(c, i), (i, 1), True), c.attempt)
        for c in claims
        for i in range(len(c.requests))
    ]


def tied_until(attempts: dict[int, int], at: str = LOW) -> Callable[[Claim, int], str]:
    """Slot s ties in its first `attempts[s]` attempts."""
    return lambda claim, i: at if claim.attempt < attempts.get(claim.slot, 0) else SPREAD[i]


def roll_out(world: World, step: int, text: Callable[[Claim, int], str]) -> list[list[Claim]]:
    """A whole step but its end; the claims of each round."""
    rounds = []
    claims = world.claims(step)
    while claims:
        rounds.append(claims)
        world.controller.slots.submit(answers(claims, text))
        claims = world.controller.slots.redraw(step)
    return rounds


def finish(world: World, step: int) -> dict[str, Any]:
    world.policy.version = step + 1
    return world.controller.step_done(step, STATS, world.said.append, world.said.append)


def make(folder: Path, redraws: int = 2, **changes: Any) -> World:
    return World(folder, **{"interfaces": {"p": {"redraws": redraws}}, **changes})


@pytest.mark.parametrize("at", [LOW, MID, HIGH])
def test_a_tied_group_is_set_aside_and_its_slot_filled_again(tmp_path: Path, at: str) -> None:
    world = make(tmp_path)
    first, second = roll_out(world, 0, tied_until({0: 1}, at))
    assert [(c.slot, c.attempt) for c in second] == [(0, 1)]
    assert second[0].task_id not in {c.task_id for c in first}
    domains = {c.task_id: world.tasks[c.task_id].domain for c in (*first, *second)}
    assert domains[second[0].task_id] == domains[first[0].task_id]
    assert world.claims(0) == [second[0], first[1]]
    advantages_SG = world.controller.slots.advantages(0)
    assert advantages_SG.shape == (SLOTS, GROUP)
    assert advantages_SG.any(axis=1).all()
    metrics = finish(world, 0)
    assert (metrics["redrawn"], metrics["tied_in_batch"]) == (1, 0)
    assert metrics["zero_std_share"] == pytest.approx(1 / 3)  # of all that was rolled out
    groups = world.logged(Group)
    assert [(g.id, g.slot, g.task_id, g.set_aside) for g in groups] == [
        ("g-000000-0", 0, second[0].task_id, False),
        ("g-000000-1", 1, first[1].task_id, False),
        ("g-000000-2", 2, first[0].task_id, True),
    ]
    assert world.memory.groups(0, 1) == groups  # what the evolver looks at
    assert groups[2].collapse == {LOW: "collapsed-low", MID: "collapsed-mid", HIGH: "collapsed-high"}[at]
    assert [r.response for r in world.memory.responses(groups[2])] == [at] * GROUP
    assert [r.response for r in world.memory.responses(groups[0])] == SPREAD
    assert not world.said


@given(
    plan=st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, 5)),
    redraws=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_the_batch_never_shrinks_and_redraws_end(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[int, int], redraws: int, seed: int
) -> None:
    world = make(tmp_path_factory.mktemp("w"), redraws, seed=seed)
    rounds = roll_out(world, 0, tied_until(plan))
    assert len(rounds) <= 1 + redraws
    assert world.controller.slots.advantages(0).shape == (SLOTS, GROUP)
    again = sum(min(n, redraws) for n in plan.values())
    metrics = finish(world, 0)
    assert metrics["redrawn"] == again == sum(len(claims) for claims in rounds[1:])
    assert metrics["tied_in_batch"] == sum(n > redraws for n in plan.values())
    groups = world.logged(Group)
    assert [g.slot for g in groups] == list(range(SLOTS + again))
    assert len({g.id for g in groups}) == SLOTS + again
    assert sum(not g.set_aside for g in groups) == SLOTS
    assert len(world.rollouts.read(0)) == (SLOTS + again) * GROUP
    keys = [r.key for claims in rounds for c in claims for r in c.requests]
    assert len(set(keys)) == len(keys)  # no two rollouts share a random stream
    domains = [
        sorted(world.tasks[c.task_id].domain for c in claims) for claims in (rounds[0], kept(rounds))
    ]
    assert domains[0] == domains[1]


def kept(rounds: Sequence[Sequence[Claim]]) -> list[Claim]:
    """What stands in each slot in the end."""
    return list({claim.slot: claim for claims in rounds for claim in claims}.values())


def test_a_paused_task_takes_no_place_but_where_all_are_paused(tmp_path: Path) -> None:
    world = make(tmp_path, 3, interfaces={"p": {"redraws": 3, "paused_weight": 0.5}})
    pause = Pause(task_ids=("dog", "letters", "words"), rationale="")
    world.evolver.plan = {0: [pause]}
    world.play(0)
    rolled_out = set()
    for step in range(1, 5):
        for claims in roll_out(world, step, tied_until({0: 9, 1: 9}))[1:]:
            rolled_out |= {c.task_id for c in claims}
        finish(world, step)
    assert rolled_out == {"fox", "letters", "words"}


def test_by_default_every_group_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.spec.interfaces.p.redraws == 0
    (claims,) = roll_out(world, 0, tied_until({0: 9, 1: 9}))
    assert world.claims(0) == claims
    metrics = finish(world, 0)
    assert (metrics["redrawn"], metrics["tied_in_batch"]) == (0, 2)
    assert not world.said


def test_a_redraw_is_asked_for_when_all_is_in_and_again_gives_the_same(tmp_path: Path) -> None:
    world = make(tmp_path)
    samples = answers(world.claims(0), tied_until({0: 1, 1: 1}))
    world.controller.slots.submit(samples[:-1])
    assert not world.controller.slots.can_redraw(0)
    with pytest.raises(ClaimError, match="missing"):
        world.controller.slots.redraw(0)
    world.controller.slots.submit(samples[-1:])
    assert world.controller.slots.can_redraw(0)
    claims = world.controller.slots.redraw(0)
    assert [c.slot for c in claims] == [0, 1]
    assert world.controller.slots.redraw(0) == claims
    more = answers(claims, tied_until({}))
    world.controller.slots.submit(more[:5])
    assert world.controller.slots.can_redraw(0)
    assert world.controller.slots.redraw(0) == claims
    for call in (world.controller.slots.advantages, world.controller.slots.rewards):
        with pytest.raises(ClaimError, match="missing"):
            call(0)
    assert world.controller.slots.submit(samples) == 0  # late duplicates of what was set aside
    early = replace(more[0], attempt=2)
    with pytest.raises(ClaimError, match="not claimed"):
        world.controller.slots.submit([early])
    world.controller.slots.submit(more)
    assert world.controller.slots.redraw(0) == []
    assert world.controller.slots.advantages(0).any(axis=1).all()


def test_a_slot_that_was_not_claimed_is_missed(tmp_path: Path) -> None:
    world = make(tmp_path)
    claims = world.controller.slots.claim(0, [0])
    world.controller.slots.submit(answers(claims, tied_until({0: 1})))
    with pytest.raises(ClaimError, match="only 1 slots"):
        world.controller.slots.redraw(0)


@pytest.mark.parametrize(
    ("rewards", "advantages", "tied"),
    [
        ([0.5, 0.5, 0.5, 0.5], [0.0] * 4, True),
        ([0.5, np.nan, 0.5, np.nan], [0.0] * 4, True),  # two that were scored
        ([1.0, 1.0, 0.0, 0.0], [0.0] * 4, True),  # ties in each stratum
        ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, -1.0, -1.0], False),
        ([np.nan] * 4, [0.0] * 4, False),  # a silent judge says nothing of the task
        ([0.5, np.nan, np.nan, np.nan], [0.0] * 4, False),
    ],
)
def test_what_ties(rewards: list[float], advantages: list[float], tied: bool) -> None:
    claim = Claim(0, 0, "t", "d", 0, "p", (), ())
    found = SlotGroup(claim, (), rewards_G=np.array(rewards), advantages_G=np.array(advantages))
    assert found.tied is tied


def test_an_attempt_has_random_streams_of_its_own(tmp_path: Path) -> None:
    """Which criteria a group leaves out, which lines it shows, and whether the oracle is asked."""
    guidance = [{"field": "skill", "lines": ["one", "two", "three", "four"], "share": "ramp"}]
    interfaces = {"p": {"redraws": 12}, "g": {"start": guidance}}
    world = World(tmp_path, interfaces=interfaces, reward={"dropout": 0.7}, oracle={"share": 0.5}, seed=1)
    roll_out(world, 0, tied_until({0: 99, 1: 99}))
    finish(world, 0)
    groups = [g for g in world.logged(Group) if g.task_id != "letters"]
    assert len(groups) >= 13
    assert len({tuple(g.met) for g in groups}) > 1
    assert len({g.quality[0] is None for g in groups}) == 2


def test_slots_that_stay_tied_are_told_of_once_in_a_while(tmp_path: Path) -> None:
    world = make(tmp_path, redraws=1, engine={"steps": 60})
    told = []
    for step in range(45):
        world.said.clear()
        roll_out(world, step, tied_until({0: 2} if step in (3, 4, 7, 40) else {0: 1}))
        metrics = finish(world, step)
        assert metrics["redrawn"] == 1
        told += [(step, text) for text in world.said if "redraws" in text]
    assert [step for step, _ in told] == [3, 40]
    assert "in the last 4 steps 1 of 8 slots still tied after 1 redraws" in told[0][1]


# --- whole runs -----------------------------------------------------------------------------------

SPECS = Path(__file__).parent.parent / "specs"


def test_a_run_trains_on_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")
    trained: list[list[Example]] = []
    step = SimEngine.train

    def seen(self: SimEngine, examples: Sequence[Example], normaliser: float) -> UpdateStats:
        trained.append(list(examples))
        return step(self, examples, normaliser)

    monkeypatch.setattr(SimEngine, "train", seen)
    spec = tmp_path / "sim.yaml"
    spec.write_text(
        f"extends: {SPECS / 'sim.yaml'}\ninterfaces: {{p: {{redraws: 2}}}}\n"
        "engine: {steps: 12, group_size: 4}\nlogging: {probe_samples: 0}\n"
    )
    done = tiny.invoke("train", spec, "--folder", tmp_path, "--name", "run")
    assert done.exit_code == 0, done.output
    rows = tiny.rows(tmp_path / "run" / "metrics.jsonl")
    assert [len(examples) for examples in trained] == [4 * 4] * 12
    assert sum(row["redrawn"] for row in rows) > 3
    assert rows[-1]["rollouts"]["train"] == (4 * 12 + sum(row["redrawn"] for row in rows)) * 4
    assert all({"rollout", "score", "train"} <= row["seconds"].keys() for row in rows)
    for examples, row in zip(trained, rows, strict=True):
        groups = [examples[i : i + 4] for i in range(0, 16, 4)]
        assert all(len({e.prompt for e in group}) == 1 for group in groups)
        flat = sum(not any(e.advantage for e in group) for group in groups)
        assert flat == row["tied_in_batch"]
    # Each trained response has the advantage that stands beside it in the rollouts file.
    for row, examples in zip(rows, trained, strict=True):
        batch = tiny.rows(tmp_path / "run" / "rollouts" / f"step-{row['step']:06d}.jsonl")[:16]
        assert [r["advantage"] for r in batch] == [e.advantage for e in examples]
        assert [r["tokens"] for r in batch] == [len(e.response_ids) for e in examples]


class Killed(BaseException):
    """Stands in for kill -9."""


def test_a_killed_run_redraws_the_same(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")
    paths = tiny.write_spec(tmp_path / "spec", tiny_model, steps=3)
    text = paths.spec.read_text()
    old = "p: {min_effective_tasks: 1.5}"
    assert text.count(old) == 1
    paths.spec.write_text(text.replace(old, "p: {min_effective_tasks: 1.5, redraws: 2}"))
    whole = tmp_path / "whole"
    for seed in range(20):  # which one has groups that tie is another on another machine
        assert tiny.invoke("train", paths.spec, "--seed", str(seed)).exit_code == 0
        shutil.rmtree(whole, ignore_errors=True)
        paths.run.rename(whole)
        if any(row["redrawn"] for row in tiny.rows(whole / "metrics.jsonl")):
            break
    last = [row["step"] for row in tiny.rows(whole / "metrics.jsonl") if row["redrawn"]][-1]
    refill = Slots.refill

    def dies(self: Slots, step: int, slots: Sequence[int]) -> list[Claim]:
        found = refill(self, step, slots)
        if step == last:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "refill", dies)
        with pytest.raises(Killed):
            tiny.invoke("train", paths.spec, "--seed", str(seed))
    assert tiny.invoke("train", "--resume", paths.run).exit_code == 0
    ours, theirs = tiny.content(paths.run), tiny.content(whole)
    for part in theirs:
        assert ours[part] == theirs[part], part
