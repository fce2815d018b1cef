"""The catalogue proposer: which candidate it picks, from what evidence, and what plays no part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from harnessrl.agents.evolver.attribute import OWNERS, diagnose
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.evolver.observed import Observed
from harnessrl.agents.evolver.proposers import Case, Catalogue, NoCandidate, content_key
from harnessrl.memory.records import Decision, Diagnosis
from harnessrl.specs.checks import IfevalCheck
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.schema import Propose, RunSpec
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.specs.updates import Add, Boost, Mount, Pause, Resume, Retire, Unmount, Update
from scripted import (
    PlainScorer,
    harness_of,
    make_decision,
    make_diagnosis,
    make_memory,
    make_spec,
    make_task,
    record_texts,
    says,
)

STEP = 1
SAYS_TOPIC = says("topic")  # goes with quality
SAYS_ALWAYS = says("always")  # met by everything
SAYS_NEVER = says("never")  # met by nothing
SAYS_HYPE = says("hype", 3.0)  # met by the worst responses
SAYS_COIN = says("coin")  # met by every other response, whatever its quality
POOL = (SAYS_ALWAYS, SAYS_HYPE, SAYS_TOPIC, SAYS_COIN, SAYS_NEVER)
LISTS = (("name a fact",), ("be brief", "be kind"), ("use a simile",))

#: Everything meets the rubric (alpha), so the score is blind; only some of it is good.
BLIND_HIGH = [
    f"0.{i + 1} alpha always {'topic' if i > 3 else 'hype'} {'coin' if i % 2 else ''}" for i in range(8)
]


class Bench:
    """A task with recorded rollouts, and the catalogue on them."""

    def __init__(
        self,
        folder: Path,
        texts: Sequence[str] = BLIND_HIGH,
        pool: Sequence[Criterion] = POOL,
        lists: Sequence[tuple[str, ...]] = LISTS,
        rubric: Sequence[Criterion] = (),
        **evolver: Any,
    ) -> None:
        self.task: TrainTask = make_task("t", rubric=rubric, criteria=pool, checklists=lists)
        self.harness: HarnessState = harness_of(self.task)
        self.memory: Memory = make_memory(folder)
        self.spec: RunSpec = make_spec(**evolver)
        self.scorer = PlainScorer()
        for step in range(2):
            record_texts(self.memory, self.harness, step, {"t": texts}, self.scorer)

    def diagnosis(self) -> Diagnosis:
        groups = self.memory.current_groups(self.harness, STEP, 12, "t")
        return diagnose("t", groups, [], self.harness, self.spec, STEP)

    def propose(
        self,
        diagnosis: Diagnosis | None = None,
        refused: Sequence[Decision] = (),
        similar: Sequence[Decision] = (),
        observed: Mapping[str, Observed] | None = None,
    ) -> Update | None:
        case = Case(diagnosis or self.diagnosis(), self.harness, similar, refused, observed or {})
        found = Catalogue(self.memory, self.scorer, self.spec).propose(case)
        return None if isinstance(found, NoCandidate) else found

    def all_proposals(self, diagnosis: Diagnosis) -> list[Update]:
        """What comes out when every proposal is refused, until there is none."""
        found: list[Update] = []
        while True:
            refused = [make_decision(u, revision=i) for i, u in enumerate(found)]
            update = self.propose(diagnosis, refused)
            if update is None:
                return found
            found.append(update)
            assert len(found) < 50


def owned_by(bench: Bench, *interfaces: str, failure: str = "blind_high") -> Diagnosis:
    """The bench's diagnosis, as if it had another failure and other owners."""
    return bench.diagnosis().model_copy(update={"failure": failure, "interfaces": list(interfaces)})


# --- criteria ------------------------------------------------------------------------------------


def test_the_criterion_that_recorded_rollouts_speak_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = bench.diagnosis()
    assert (diagnosis.failure, diagnosis.signal_rate) == ("blind_high", 0.0)
    update = bench.propose()
    assert isinstance(update, Add) and update.criterion == SAYS_TOPIC
    # Of each group of 8 the 16 pairs (a better, a worse one) differ in score: all informative.
    assert update.expected == 1.0
    assert update.task_ids == ("t",)
    assert update.rationale == diagnosis.sentence
    assert update.evidence == (diagnosis.id, "g-000000-0", "g-000001-0")


def test_useless_and_harmful_criteria_are_never_proposed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    found = bench.all_proposals(owned_by(bench, "c"))
    added = [u.criterion for u in found if isinstance(u, Add)]
    assert SAYS_TOPIC in added
    # Hype is inverted: no informative pair. Always and never change no order. Coin: more than half
    # of its pairs are right by chance (10 of 16, as even ranks are one higher), which is a gain here.
    assert not {SAYS_ALWAYS.id, SAYS_NEVER.id, SAYS_HYPE.id} & {c.id for c in added}


def test_nothing_is_proposed_when_recorded_rollouts_speak_for_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pool=(SAYS_ALWAYS, SAYS_HYPE, SAYS_NEVER))
    assert bench.propose(owned_by(bench, "c")) is None
    empty = Bench(tmp_path / "empty", pool=())
    assert empty.propose(owned_by(empty, "c")) is None


def test_the_margin_is_the_least_gain_worth_proposing(tmp_path: Path) -> None:
    """Coin tells 10 of 16 pairs right: 0.625."""
    pool = (SAYS_COIN,)
    fine = Bench(tmp_path / "a", pool=pool, margin=0.6).propose()
    assert isinstance(fine, Add) and fine.expected == 0.625
    short = Bench(tmp_path / "b", pool=pool, lists=(), margin=0.65)
    assert short.propose(owned_by(short, "c")) is None


def test_a_scored_criterion_against_quality_is_retired(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rubric=(SAYS_TOPIC, SAYS_HYPE), pool=())
    assert bench.diagnosis().failure == "inversion"
    update = bench.propose()
    assert isinstance(update, Retire) and update.criterion_id == SAYS_HYPE.id
    assert update.expected == 1.0  # from 0 of 16 to 16 of 16


def test_the_last_criterion_is_never_retired(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rubric=(SAYS_HYPE,), pool=())
    assert bench.diagnosis().failure == "inversion"
    assert bench.propose() is None


def test_a_criterion_that_was_there_before_is_not_added(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pool=(SAYS_TOPIC,))
    add = Add(task_ids=("t",), rationale="", criterion=SAYS_TOPIC)
    bench.harness = apply(bench.harness, [add])
    assert bench.all_proposals(owned_by(bench, "c")) == []
    retire = Retire(task_ids=("t",), rationale="", criterion_id=SAYS_TOPIC.id)
    bench.harness = apply(bench.harness, [retire])
    assert bench.all_proposals(owned_by(bench, "c")) == []


def test_only_the_diagnosed_groups_are_replayed(tmp_path: Path) -> None:
    """A later group in which hype goes with quality is not part of this diagnosis."""
    bench = Bench(tmp_path, pool=(SAYS_HYPE,), lists=())
    diagnosis = owned_by(bench, "c")
    turned = [f"0.{i + 1} alpha {'hype' if i > 3 else ''}" for i in range(8)]
    record_texts(bench.memory, bench.harness, STEP + 1, {"t": turned}, bench.scorer)
    assert bench.propose(diagnosis) is None
    with_it = diagnosis.model_copy(update={"evidence": ["g-000002-0"], "step": STEP + 1})
    assert isinstance(bench.propose(with_it), Add)


# --- what plays no part --------------------------------------------------------------------------


@pytest.mark.parametrize("interface", ["c", "g"])
def test_the_order_of_a_pool_decides_nothing(interface: str, tmp_path: Path) -> None:
    """Two more criteria do what `topic` does: ties, which a pool's order must not settle."""
    pool = (says("theme"), SAYS_TOPIC, SAYS_HYPE, says("subject"))
    texts = [text.replace("topic", "topic theme subject") for text in BLIND_HIGH]
    bench = Bench(tmp_path, texts, pool)
    diagnosis = owned_by(bench, interface, failure={"c": "blind_high", "g": "blind_low"}[interface])
    sequence = [u.model_dump_json() for u in bench.all_proposals(diagnosis)]
    assert len(sequence) == 3
    for criteria, lists in zip(
        itertools.permutations(pool), itertools.cycle(itertools.permutations(LISTS)), strict=False
    ):
        bench.task = make_task("t", criteria=criteria, checklists=lists)
        bench.harness = harness_of(bench.task)
        assert [u.model_dump_json() for u in bench.all_proposals(diagnosis)] == sequence


def test_the_evidence_decides_not_the_points(tmp_path: Path) -> None:
    """The harmful candidate carries ten times the points of the useful one."""
    pool = (says("hype", 10.0), says("always", 10.0), says("topic", 1.0))
    update = Bench(tmp_path, pool=pool).propose()
    assert isinstance(update, Add) and update.criterion == pool[2]


def test_a_change_has_one_key_wherever_it_is_made() -> None:
    one = Add(task_ids=("a",), rationale="x", criterion=SAYS_TOPIC, evidence=("d",), expected=0.3)
    other = Add(task_ids=("b",), rationale="y", criterion=SAYS_TOPIC)
    assert content_key(one) == content_key(other)
    different: list[Update] = [
        Add(task_ids=("a",), rationale="x", criterion=SAYS_HYPE),
        Retire(task_ids=("a",), rationale="x", criterion_id=SAYS_TOPIC.id),
        Pause(task_ids=("a",), rationale="x"),
        Resume(task_ids=("a",), rationale="x"),
        Mount(task_ids=("a",), rationale="x", lines=("a", "b"), share=0.5),
        Mount(task_ids=("a",), rationale="x", lines=("a b",), share=0.5),
        Mount(task_ids=("a",), rationale="x", lines=("a", "b"), share=0.25),
    ]
    assert len({content_key(u) for u in (one, *different)}) == 1 + len(different)


def test_a_criterion_is_the_same_however_its_arguments_are_ordered() -> None:
    """In another file, or after a round trip, the keys may stand in another order."""

    def words(args: dict[str, Any]) -> Criterion:
        check = IfevalCheck(kind="ifeval", id="length_constraints:number_words", args=args)
        return Criterion(text="Short.", points=1.0, check=check)

    one = words({"num_words": 9, "relation": "less than"})
    other = words({"relation": "less than", "num_words": 9})
    assert one == other
    assert one.id == other.id


# --- refusals ------------------------------------------------------------------------------------


def test_a_refused_candidate_is_not_proposed_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.propose()
    assert isinstance(first, Add)
    # The refusal may have been written for another diagnosis, with another prediction.
    refusal = make_decision(first.model_copy(update={"rationale": "then", "expected": 0.01}))
    second = bench.propose(refused=[refusal])
    assert second is not None and content_key(second) != content_key(first)


def test_when_everything_was_refused_there_is_no_proposal(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    found = bench.all_proposals(bench.diagnosis())
    keys = [content_key(u) for u in found]
    assert len(keys) == len(set(keys))
    # c first, the owner; p after it (everything at the ceiling: sample it less).
    assert [u.interface for u in found] == ["c"] * (len(found) - 1) + ["p"]
    assert isinstance(found[-1], Pause)


def test_guidance_first_then_pausing_where_nothing_is_reached(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [text.replace("alpha", "") for text in BLIND_HIGH])
    diagnosis = bench.diagnosis()
    assert (diagnosis.failure, diagnosis.interfaces) == ("blind_low", ["g", "p"])
    found = bench.all_proposals(diagnosis)
    assert [u.op for u in found] == ["mount"] * 3 + ["pause"]
    assert {u.lines for u in found if isinstance(u, Mount)} == set(LISTS)
    assert {u.share for u in found if isinstance(u, Mount)} == {bench.spec.interfaces.g.share}
    assert {u.expected for u in found} == {None}  # no prediction without a memory


# --- memory of similar tasks ---------------------------------------------------------------------


def elsewhere(update: Update, gain: float | None) -> Decision:
    """What became of the same change on another task."""
    return make_decision(update.model_copy(update={"task_ids": ("other",)}), gain)


def test_memory_of_similar_tasks_ranks_checklists(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = owned_by(bench, "g", failure="blind_low")
    mounts = bench.all_proposals(diagnosis)
    first, *_, last = mounts
    chosen = bench.propose(diagnosis, similar=[elsewhere(last, 0.3)])
    assert chosen is not None
    assert content_key(chosen) == content_key(last) and chosen.expected == pytest.approx(0.3)
    # What did harm elsewhere comes last; what was never measured says nothing.
    warned = bench.propose(diagnosis, similar=[elsewhere(first, -0.2)])
    assert warned is not None and content_key(warned) == content_key(mounts[1])
    unmeasured = bench.propose(diagnosis, similar=[elsewhere(last, None)])
    assert unmeasured is not None and content_key(unmeasured) == content_key(first)


def test_remembered_gains_are_averaged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = owned_by(bench, "g", failure="blind_low")
    first, second, _ = bench.all_proposals(diagnosis)
    similar = [elsewhere(second, 0.5), elsewhere(second, -0.3), elsewhere(first, 0.15)]
    chosen = bench.propose(diagnosis, similar=similar)
    assert chosen is not None
    assert content_key(chosen) == content_key(first) and chosen.expected == pytest.approx(0.15)


def test_memory_of_similar_tasks_changes_the_choice_of_criterion(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pool=(SAYS_TOPIC, SAYS_COIN), lists=())
    add = Add(task_ids=("t",), rationale="", criterion=SAYS_TOPIC)
    # Predicted: topic 1.0, coin 0.625. Elsewhere topic did not hold: (1.0 - 0.4) / 2 = 0.3.
    chosen = bench.propose(owned_by(bench, "c"), similar=[elsewhere(add, -0.4)])
    assert isinstance(chosen, Add) and chosen.criterion == SAYS_COIN
    lone = Bench(tmp_path / "lone", pool=(SAYS_TOPIC,), lists=())
    halved = lone.propose(owned_by(lone, "c"), similar=[elsewhere(add, -0.4)])
    assert isinstance(halved, Add) and halved.expected == pytest.approx(0.3)
    assert lone.propose(owned_by(lone, "c"), similar=[elsewhere(add, -0.95)]) is None


def test_memory_alone_proposes_no_criterion_that_rollouts_do_not_speak_for(tmp_path: Path) -> None:
    """Hype helped elsewhere; here it turns the order round, and agreement would fall."""
    bench = Bench(tmp_path, pool=(SAYS_HYPE,), lists=())
    add = Add(task_ids=("t",), rationale="", criterion=SAYS_HYPE)
    assert bench.propose(owned_by(bench, "c"), similar=[elsewhere(add, 0.9)]) is None


# --- memory of what was never measured ------------------------------------------------------------


def unmeasured(update: Update, task: str = "t") -> Decision:
    """The record of a change that was accepted without a test."""
    return make_decision(update.model_copy(update={"task_ids": (task,)}), gain=None, accepted=True)


def followed(gain: float) -> Observed:
    return Observed(0.5, 0.5 + gain, (2, 3))


def selecting_any(bench: Bench) -> None:
    rules = bench.spec.evolver.model_copy(update={"propose": Propose(select="any")})
    bench.spec = bench.spec.model_copy(update={"evolver": rules})


def test_what_training_showed_counts_where_nothing_was_measured(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = owned_by(bench, "g", failure="blind_low")
    *_, last = bench.all_proposals(diagnosis)
    there = unmeasured(last, "other")
    chosen = bench.propose(diagnosis, similar=[there], observed={there.id: followed(0.3)})
    assert chosen is not None
    assert content_key(chosen) == content_key(last) and chosen.expected == pytest.approx(0.3)
    told = f"; remembered: {there.id}, signal rate 0.50 -> 0.80 over 2 and 3 groups"
    assert chosen.rationale == diagnosis.sentence + told


def test_a_measured_gain_goes_before_what_training_showed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = owned_by(bench, "g", failure="blind_low")
    *_, last = bench.all_proposals(diagnosis)
    chosen = bench.propose(diagnosis, similar=[elsewhere(last, 0.2)])
    assert chosen is not None and chosen.expected == pytest.approx(0.2)
    assert chosen.rationale == diagnosis.sentence  # a measurement stands in the record of its own


def test_of_any_criteria_those_come_first_that_memory_speaks_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    selecting_any(bench)
    diagnosis = owned_by(bench, "c")
    sequence = bench.all_proposals(diagnosis)
    assert len(sequence) == len(POOL) and {u.expected for u in sequence} == {None}
    first, *_, last = sequence
    there = unmeasured(last, "other")
    lucky = bench.propose(diagnosis, similar=[there], observed={there.id: followed(0.1)})
    assert lucky is not None and content_key(lucky) == content_key(last)
    there = unmeasured(first, "other")
    warned = bench.propose(diagnosis, similar=[there], observed={there.id: followed(-0.1)})
    assert warned is not None and content_key(warned) == content_key(sequence[1])


@pytest.mark.parametrize("select", ["any", "expected"])
def test_a_criterion_that_did_harm_here_is_taken_back(select: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, pool=(SAYS_TOPIC, SAYS_ALWAYS))
    if select == "any":
        selecting_any(bench)
    made = unmeasured(Add(task_ids=("t",), rationale="", criterion=SAYS_ALWAYS))
    bench.harness = apply(bench.harness, [made.update])
    diagnosis = owned_by(bench, "c")
    unaware = bench.propose(diagnosis)
    assert isinstance(unaware, Add) and unaware.criterion == SAYS_TOPIC
    undone = bench.propose(
        diagnosis, refused=[made, make_decision(unaware)], observed={made.id: followed(-0.4)}
    )
    assert isinstance(undone, Retire) and undone.criterion_id == SAYS_ALWAYS.id
    # Recorded rollouts say that nothing changes without it: half of what was lost is expected back.
    assert undone.expected == pytest.approx({"any": 0.4, "expected": 0.2}[select])
    assert f"remembered: {made.id}, signal rate 0.50 -> 0.10" in undone.rationale
    bench.harness = apply(bench.harness, [undone])
    assert not any(
        isinstance(u, Retire) and u.criterion_id == SAYS_ALWAYS.id for u in bench.all_proposals(diagnosis)
    )


def test_guidance_that_did_harm_here_is_taken_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    diagnosis = owned_by(bench, "g", failure="blind_low")
    made = unmeasured(Mount(task_ids=("t",), rationale="", lines=LISTS[0], share=0.5))
    bench.harness = apply(bench.harness, [made.update])
    off = bench.propose(diagnosis, refused=[made], observed={made.id: followed(-0.4)})
    assert isinstance(off, Unmount) and off.expected == pytest.approx(0.4)
    # Other guidance took its place: there is nothing to take back.
    instead = Mount(task_ids=("t",), rationale="", lines=LISTS[1], share=0.5)
    bench.harness = apply(bench.harness, [instead])
    other = bench.propose(diagnosis, refused=[made], observed={made.id: followed(-0.4)})
    assert isinstance(other, Mount) and other.lines == LISTS[2]


# --- every failure class has an answer of its owner ----------------------------------------------


def test_every_failure_class_leads_to_an_update_of_its_owner(tmp_path: Path) -> None:
    guidance = Mount(task_ids=("t",), rationale="", lines=LISTS[0], share=0.5)
    pause = Pause(task_ids=("t",), rationale="")
    expected: dict[str, tuple[type, list[Update]]] = {
        "blind_low": (Mount, []),
        "blind_mid": (Add, []),
        "blind_high": (Add, []),
        "spurious": (Add, []),
        "inversion": (Add, []),
        "mastered": (Pause, []),
        "underused": (Boost, []),
        "recovered": (Resume, [pause]),
    }
    assert set(expected) == {failure for failure, owners in OWNERS.items() if owners}
    bench = Bench(tmp_path)
    seed = bench.harness
    for failure, (kind, before) in expected.items():
        bench.harness = apply(seed, before)
        update = bench.propose(owned_by(bench, *OWNERS[failure], failure=failure))
        assert type(update) is kind, failure
        assert update.interface == OWNERS[failure][0]
    bench.harness = apply(seed, [guidance])
    off = bench.propose(owned_by(bench, "g", "c", "p", failure="blind_high"))
    assert isinstance(off, Unmount)


def test_a_mounted_checklist_is_not_mounted_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.harness = apply(
        bench.harness, [Mount(task_ids=("t",), rationale="", lines=LISTS[0], share=0.5)]
    )
    found = bench.all_proposals(owned_by(bench, "g", failure="blind_low"))
    assert {u.lines for u in found if isinstance(u, Mount)} == set(LISTS[1:])


def test_what_is_paused_is_not_paused_again_and_what_is_not_is_not_resumed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.propose(owned_by(bench, "p", failure="recovered")) is None
    bench.harness = apply(bench.harness, [Pause(task_ids=("t",), rationale="")])
    for failure in ("mastered", "blind_low", "blind_high"):
        assert bench.propose(owned_by(bench, "p", failure=failure)) is None


def test_a_diagnosis_without_an_owner_gets_no_proposal(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for failure in ("healthy", "neutral", "not_enough_evidence"):
        assert bench.propose(make_diagnosis(bench.task, failure, [])) is None


def test_every_proposal_can_be_applied(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rubric=(says("alpha"), SAYS_HYPE))
    for failure, interfaces in OWNERS.items():
        for update in bench.all_proposals(owned_by(bench, *interfaces, failure=failure)):
            assert apply(bench.harness, [update]).version == 1
