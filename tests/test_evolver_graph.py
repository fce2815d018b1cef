"""The evolver graph on LangGraph and SQLite: its ways, its state, and what later looks know."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harnessrl.agents.evolver.critic import Critic, StalePolicyError
from harnessrl.agents.evolver.decision import Outcome
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.evolver.evolver import Evolver, Look, thread_id
from harnessrl.agents.evolver.graph import Context, build_graph, diagnose_task
from harnessrl.agents.evolver.observed import Observed
from harnessrl.agents.evolver.proposers import Case, Catalogue, NoCandidate, Unusable, content_key
from harnessrl.memory.index import MemoryIndex
from harnessrl.memory.records import (
    Accepted,
    AnyRecord,
    Decision,
    Diagnosis,
    NoProposal,
    RefusedProposal,
)
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.sampling import effective_tasks, probabilities
from harnessrl.specs.schema import CriticNode, Interfaces, Retrieve, RubricInterface, RunSpec
from harnessrl.specs.tasks import Quality
from harnessrl.specs.updates import Add, Mount, Pause, Unmount, Update
from harnessrl.trainer.runfolder import RunFolder
from harnessrl.trainer.studio.snapshot import take_snapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from scripted import (
    PlainScorer,
    ScriptedPolicy,
    Write,
    by_index,
    group_record,
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
TASK = make_task("t")
RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def add(word: str, task: str = "t") -> Add:
    return Add(task_ids=(task,), rationale="because", criterion=says(word), evidence=("d",))


def mount(*checklist: str, task: str = "t") -> Mount:
    return Mount(task_ids=(task,), rationale="", lines=checklist, share=0.5)


# --- the graph alone, with a scripted proposer and critic ------------------------------------------


class Proposals:
    """Proposes a list's entries one after the other, and keeps the cases it was shown."""

    def __init__(self, *updates: Update | NoCandidate) -> None:
        self.updates = list(updates)
        self.cases: list[Case] = []

    def propose(self, case: Case) -> Update | NoCandidate:
        self.cases.append(case)
        refused = f"nothing is left, {len(case.refused)} refused before"
        return self.updates.pop(0) if self.updates else NoCandidate(refused)


class Verdicts(Critic):
    """A critic that measures what it is told to, and keeps what it was asked."""

    def __init__(self, *accepted: bool) -> None:
        self.accepted = list(accepted)
        self.asked: list[tuple[str, int, int]] = []

    def judge(
        self, update: Update, harness: HarnessState, step: int, revision: int, *_: object
    ) -> Outcome:
        apply(harness, [update], step)  # what cannot be applied is never measured
        self.asked.append((content_key(update), step, revision))
        measured = make_decision(update, gain=0.01 * (revision + 1)).measured
        assert measured is not None
        return Outcome(self.accepted.pop(0), f"measured at revision {revision}", measured)


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    connection = sqlite3.connect(tmp_path / "graph.sqlite", check_same_thread=False)
    yield SqliteSaver(connection)
    connection.close()


class Run:
    """One run of the graph; the state it ends in, and its pieces."""

    def __init__(
        self,
        saver: SqliteSaver,
        folder: Path,
        proposer: Proposals,
        critic: Critic,
        memory: Memory | None = None,
        spec: RunSpec | None = None,
        diagnosis: Diagnosis | None = None,
        harness: HarnessState | None = None,
    ) -> None:
        self.saver, self.proposer, self.critic = saver, proposer, critic
        self.said: list[str] = []
        context = Context(
            spec or make_spec(),
            memory or make_memory(folder),
            harness or harness_of(TASK),
            proposer,
            critic,
            self.said.append,
        )
        found = diagnosis or make_diagnosis(TASK, "blind_high", ["c", "p"])
        self.config = {"configurable": {"thread_id": thread_id(STEP, "t")}}
        start = {"step": STEP, "task_id": "t", "diagnosis": found.model_dump(mode="json")}
        graph = build_graph(saver)
        self.state: dict[str, Any] = graph.invoke(start, self.config, context=context)
        self.path = [
            node
            for past in reversed(list(graph.get_state_history(self.config)))
            for node in past.next
            if node != "__start__"
        ]

    @property
    def decisions(self) -> list[Decision]:
        return [Decision.model_validate(d) for d in self.state.get("decisions", [])]


def test_accepted_at_once(saver: SqliteSaver, tmp_path: Path) -> None:
    run = Run(saver, tmp_path, Proposals(add("beta"), add("gamma")), Verdicts(True))
    assert run.path == ["retrieve", "attribute", "propose", "critic"]
    (decision,) = run.decisions
    assert decision.accepted and decision.update == add("beta")
    assert (decision.id, decision.revision) == ("u-000001-t-0", 0)
    assert (decision.step, decision.diagnosis_id) == (STEP, "d-000001-t")
    assert decision.reason == "measured at revision 0"
    assert decision.measured is not None and decision.measured.gain == 0.01
    assert run.critic.asked == [(content_key(add("beta")), STEP, 0)]
    assert len(run.proposer.cases) == 1 and not run.proposer.cases[0].refused
    assert any("accepted c add" in line for line in run.said)


def test_rejected_revised_and_rejected_again(saver: SqliteSaver, tmp_path: Path) -> None:
    proposer = Proposals(add("beta"), add("gamma"), add("delta"))
    run = Run(saver, tmp_path, proposer, Verdicts(False, False))
    assert run.path == ["retrieve", "attribute", "propose", "critic", "revise", "propose", "critic"]
    first, second = run.decisions
    assert not first.accepted and not second.accepted
    assert [first.id, second.id] == ["u-000001-t-0", "u-000001-t-1"]
    assert (first.update, second.update) == (add("beta"), add("gamma"))
    # The revision was proposed with the measured reason in hand, and measured as a revision.
    (shown,) = proposer.cases[1].refused
    assert shown == first and shown.reason == "measured at revision 0"
    assert [revision for _, _, revision in run.critic.asked] == [0, 1]
    assert len(proposer.updates) == 1  # a third candidate was there, and nobody asked for it


def test_a_revision_may_be_accepted(saver: SqliteSaver, tmp_path: Path) -> None:
    run = Run(saver, tmp_path, Proposals(add("beta"), add("gamma")), Verdicts(False, True))
    assert [d.accepted for d in run.decisions] == [False, True]
    assert "no_proposal" not in run.state


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_revisions_are_bounded(bound: int, saver: SqliteSaver, tmp_path: Path) -> None:
    proposer = Proposals(*(add(f"word{i}") for i in range(9)))
    spec = make_spec(max_revisions=bound)
    run = Run(saver, tmp_path, proposer, Verdicts(*[False] * 9), spec=spec)
    assert [d.revision for d in run.decisions] == list(range(bound + 1))
    assert run.path.count("critic") == bound + 1 and run.path.count("revise") == bound
    assert len(proposer.cases[-1].refused) == bound


def test_no_proposal(saver: SqliteSaver, tmp_path: Path) -> None:
    run = Run(saver, tmp_path, Proposals(), Verdicts())
    assert run.path == ["retrieve", "attribute", "propose"]
    nothing = NoProposal.model_validate(run.state["no_proposal"])
    assert (nothing.id, nothing.diagnosis_id) == ("n-000001-t", "d-000001-t")
    assert nothing.reason == "nothing is left, 0 refused before"
    assert run.decisions == [] and run.critic.asked == []


def test_a_proposal_that_cannot_be_used_is_followed_by_another(
    saver: SqliteSaver, tmp_path: Path
) -> None:
    proposer = Proposals(Unusable("no op", "prose"), add("beta"), Unusable("no op", "more prose"))
    run = Run(saver, tmp_path, proposer, Verdicts(False), spec=make_spec(max_revisions=2))
    assert run.path == "retrieve attribute propose revise propose critic revise propose".split()
    assert run.critic.asked == [(content_key(add("beta")), STEP, 1)]
    first, last = (RefusedProposal.model_validate(r) for r in run.state["unusable"])
    assert (first.id, first.revision, first.proposed) == ("r-000001-t-0", 0, "prose")
    assert (last.id, last.revision, last.reason) == ("r-000001-t-2", 2, "no op")
    assert [len(case.unusable) for case in proposer.cases] == [0, 1, 1]
    assert [len(case.refused) for case in proposer.cases] == [0, 0, 1]
    assert "no_proposal" not in run.state


def test_studio_tells_of_a_look_without_a_usable_proposal(saver: SqliteSaver, tmp_path: Path) -> None:
    Run(saver, tmp_path, Proposals(*[Unusable("no op", "prose")] * 2), Verdicts())
    (thread,) = take_snapshot(RunFolder(tmp_path), tmp_path / "copy.sqlite")
    assert thread.about["outcome"] == "refused" and "interface" not in thread.about


def test_nothing_left_after_a_rejection(saver: SqliteSaver, tmp_path: Path) -> None:
    run = Run(saver, tmp_path, Proposals(add("beta")), Verdicts(False))
    assert len(run.decisions) == 1
    assert "1 refused before" in NoProposal.model_validate(run.state["no_proposal"]).reason


@pytest.mark.parametrize("failure", ["healthy", "neutral", "not_enough_evidence"])
def test_no_proposal_without_a_diagnosis(failure: str, saver: SqliteSaver, tmp_path: Path) -> None:
    """... that an interface can answer, whatever stands in its record."""
    claimed = make_diagnosis(TASK, failure, ["p", "g", "c"])
    run = Run(saver, tmp_path, Proposals(add("beta")), Verdicts(True), diagnosis=claimed)
    assert run.path == ["retrieve", "attribute"]
    assert run.proposer.cases == [] and run.critic.asked == []
    assert Diagnosis.model_validate(run.state["diagnosis"]).interfaces == []


def test_an_interface_that_may_not_evolve_is_not_asked(saver: SqliteSaver, tmp_path: Path) -> None:
    frozen = make_spec().model_copy(update={"interfaces": Interfaces(c=RubricInterface(evolve=False))})
    spurious = make_diagnosis(TASK, "spurious", ["c"])
    run = Run(saver, tmp_path, Proposals(add("beta")), Verdicts(True), spec=frozen, diagnosis=spurious)
    assert run.proposer.cases == []


def test_what_cannot_be_applied_is_rejected_unmeasured(saver: SqliteSaver, tmp_path: Path) -> None:
    unmount = Unmount(task_ids=("t",), rationale="")
    run = Run(saver, tmp_path, Proposals(unmount, add("beta")), Verdicts(True))
    first, second = run.decisions
    assert not first.accepted and first.measured is None
    assert first.reason == "cannot be applied: unmount: t carries no checklist; it carries no guidance"
    assert second.accepted and run.critic.asked == [(content_key(add("beta")), STEP, 1)]


def test_without_a_test_the_first_candidate_that_fits_is_accepted(
    saver: SqliteSaver, tmp_path: Path
) -> None:
    unmount = Unmount(task_ids=("t",), rationale="")
    spec = make_spec()
    rules = spec.evolver.model_copy(update={"critic": CriticNode(test="none")})
    untested = spec.model_copy(update={"evolver": rules})
    memory = make_memory(tmp_path)
    critic = Critic(ScriptedPolicy(FRESH), PlainScorer(), memory, untested)
    proposer = Proposals(unmount, add("beta"))
    run = Run(saver, tmp_path, proposer, critic, memory, untested)
    first, second = run.decisions
    assert not first.accepted and first.reason.startswith("cannot be applied: unmount: ")
    assert second.accepted and (second.reason, second.measured) == ("not measured", None)
    assert critic.policy.requests == []  # type: ignore[attr-defined]


def plain(value: Any) -> bool:
    """Nothing but JSON's own types, all the way down."""
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    if type(value) is list:
        return all(plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def test_the_state_is_plain_json_in_every_checkpoint(saver: SqliteSaver, tmp_path: Path) -> None:
    harness = harness_of(make_task("t", checklists=[("a", "b")]))
    proposer = Proposals(mount("a", "b"), add("beta"))
    run = Run(saver, tmp_path, proposer, Verdicts(False, True), harness=harness)
    other = sqlite3.connect(tmp_path / "graph.sqlite", check_same_thread=False)
    checkpoints = list(SqliteSaver(other).list(run.config))
    assert len(checkpoints) >= 8  # the start, seven nodes
    for checkpoint in checkpoints:
        values = checkpoint.checkpoint["channel_values"]
        known = {k: v for k, v in values.items() if not k.startswith(("__", "branch:"))}
        assert plain(known), known
        assert json.loads(json.dumps(known, allow_nan=False)) == known
        assert len(json.dumps(known)) < 10_000
    newest = checkpoints[0].checkpoint["channel_values"]
    other.close()
    assert newest["decisions"] == run.state["decisions"] and newest["revision"] == 1
    assert newest["within"] == [] and newest["cross"] == []
    assert plain(run.state)  # and so before the saver has turned tuples into lists


def test_a_run_of_the_graph_keeps_to_its_thread(saver: SqliteSaver, tmp_path: Path) -> None:
    Run(saver, tmp_path, Proposals(add("beta")), Verdicts(True))
    threads = {c.config["configurable"]["thread_id"] for c in saver.list(None)}
    assert threads == {"step-000001-t"}
    assert thread_id(1, "t") != thread_id(11, "t") != thread_id(1, "u")


def test_what_was_refused_here_comes_back(saver: SqliteSaver, tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    old = make_diagnosis(TASK, "blind_high", ["c"], step=0)
    unlike = make_diagnosis(TASK, "blind_low", ["g"], step=0).model_copy(update={"id": "d-x"})
    refused = make_decision(add("old"), step=0)
    for_another = make_decision(mount("m"), step=0, revision=1, diagnosis_id="d-x")
    kept = make_decision(add("kept"), step=0, revision=2, accepted=True)
    elsewhere = make_decision(add("there", "u"), step=0)
    memory.add([old, unlike, refused, for_another, kept, elsewhere])
    run = Run(saver, tmp_path, Proposals(), Verdicts(), memory=memory)
    assert run.state["within"] == [refused.id, for_another.id]
    assert run.proposer.cases[0].refused == [refused, for_another]
    assert "2 refused before" in run.state["no_proposal"]["reason"]


@pytest.mark.parametrize(("after", "is_told"), [(RISING[::-1], True), (RISING, False)])
def test_an_unmeasured_change_comes_back_if_the_signal_fell_after_it(
    after: Sequence[float], is_told: bool, saver: SqliteSaver, tmp_path: Path
) -> None:
    memory = make_memory(tmp_path)
    made = make_decision(add("old"), gain=None, accepted=True, step=0)
    version = Accepted(
        id="h-000001", step=0, harness_version=1, decision_ids=[made.id], updates=[made.update]
    )
    before, since = (group_record(TASK, r, RISING, n) for n, r in enumerate((RISING, after)))
    memory.add([before, made, version, since])
    run = Run(saver, tmp_path / "a", Proposals(), Verdicts(), memory, make_spec(min_groups=1))
    assert run.state["within"] == ([made.id] if is_told else [])
    (case,) = run.proposer.cases
    assert list(case.refused) == ([made] if is_told else [])
    assert dict(case.observed) == ({made.id: Observed(1.0, 0.0, (1, 1))} if is_told else {})


def test_what_followed_unmeasured_changes_elsewhere_is_told(saver: SqliteSaver, tmp_path: Path) -> None:
    index = MemoryIndex(tmp_path / "chroma")
    memory = make_memory(tmp_path, index)
    there = make_decision(add("there", "u"), gain=None, accepted=True, step=0)
    version = Accepted(
        id="h-000001", step=0, harness_version=1, decision_ids=[there.id], updates=[there.update]
    )
    falling = RISING[::-1]
    before, since = (group_record(make_task("u"), r, RISING, n) for n, r in enumerate((falling, RISING)))
    memory.add([before, there, version, since])
    for memory_rule, seen in (("run", {there.id: Observed(0.0, 1.0, (1, 1))}), ("look", {})):
        spec = make_spec(min_groups=1, memory=memory_rule)
        run = Run(saver, tmp_path, Proposals(), Verdicts(), memory, spec)
        assert list(run.proposer.cases[0].similar) == ([there] if seen else [])
        assert dict(run.proposer.cases[0].observed) == seen
    index.close()


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"retrieve": Retrieve(within=2)}, [1, 2]),  # the newest
        ({"retrieve": Retrieve(within=0)}, []),
        ({"memory": "look"}, []),
    ],
    ids=["two", "none", "no memory"],
)
def test_what_is_remembered_can_be_limited(
    rules: dict[str, Any], kept: list[int], saver: SqliteSaver, tmp_path: Path
) -> None:
    memory = make_memory(tmp_path)
    refused = [make_decision(add(word), step=0, revision=i) for i, word in enumerate("abc")]
    memory.add([make_diagnosis(TASK, "blind_high", ["c"], step=0), *refused])
    run = Run(saver, tmp_path, Proposals(), Verdicts(), memory, make_spec(**rules))
    assert run.state["within"] == [refused[i].id for i in kept]
    assert run.state["cross"] == []


def test_similar_decisions_of_other_tasks_are_retrieved(saver: SqliteSaver, tmp_path: Path) -> None:
    """From the real index: decisions only, never the task's own, the similar one first."""
    index = MemoryIndex(tmp_path / "chroma")
    memory = make_memory(tmp_path, index)
    asked = make_diagnosis(TASK, "blind_high", ["c"])
    near = make_decision(add("there", "u").model_copy(update={"rationale": asked.sentence}))
    far = make_decision(add("lake", "v").model_copy(update={"rationale": "A duck swam on the lake."}))
    own = make_decision(add("own").model_copy(update={"rationale": asked.sentence}))
    memory.add([make_diagnosis(make_task("u"), "blind_high", ["c"]), far, near, own])
    run = Run(saver, tmp_path, Proposals(add("beta")), Verdicts(True), memory=memory)
    index.close()
    assert run.state["cross"] == [near.id, far.id]
    assert run.proposer.cases[0].similar == [near, far]
    assert run.decisions[0].retrieved == [own.id, near.id, far.id]


# --- looks, with the catalogue and the real critic -------------------------------------------------

#: All meet the rubric (alpha). In these recorded rollouts luck goes with quality (16 pairs of 16),
#: topic nearly does (13 of 16).
RECORDED = [
    f"0.{i + 1} alpha {'luck' if i > 3 else ''} {'topic' if i in (1, 5, 6, 7) else ''}" for i in range(8)
]
#: Fresh ones never say luck, and topic goes with quality.
FRESH = by_index([f"0.{i + 1} alpha {'topic' if i > 3 else ''}" for i in range(8)])


class Bench:
    """An evolver on a scripted policy, with a memory that the test fills."""

    def __init__(
        self, folder: Path, saver: Any, harness: HarnessState, write: Write = FRESH, **spec: Any
    ) -> None:
        self.harness = harness
        self.spec = make_spec(**spec)
        self.memory = make_memory(folder)
        self.policy = ScriptedPolicy(write)
        scorer = PlainScorer()
        self.evolver = Evolver(
            build_graph(saver),
            Catalogue(self.memory, scorer, self.spec),
            Critic(self.policy, scorer, self.memory, self.spec),
            self.memory,
            self.spec,
        )

    def look(self, step: int, say: Callable[[str], None] = lambda _: None) -> Look:
        """Look, and remember, as the controller does."""
        self.policy.version = step + 1
        look = self.evolver.look(step, self.harness, say)
        records: list[AnyRecord] = list(look.records)
        if look.accepted:
            self.harness = apply(self.harness, look.updates)
            version = self.harness.version
            records.append(
                Accepted(
                    id=f"h-{version:06d}",
                    step=step,
                    harness_version=version,
                    decision_ids=[d.id for d in look.accepted],
                    updates=look.updates,
                )
            )
        self.memory.add(records)
        return look

    def groups(self, task: str, rewards: Sequence[float], quality: Sequence[float], slot: int) -> None:
        """Two groups, at steps 0 and 1."""
        for step in (0, 1):
            record = group_record(self.harness.tasks[task], list(rewards), list(quality), step, slot)
            self.memory.add([record])

    def record(self, steps: Sequence[int], **texts: Sequence[str]) -> None:
        for step in steps:
            record_texts(self.memory, self.harness, step, texts)


def decisions(look: Look) -> list[Decision]:
    return [r for r in look.records if isinstance(r, Decision)]


def test_a_look_measures_rejects_revises_and_accepts(saver: SqliteSaver, tmp_path: Path) -> None:
    pool = [says("luck"), says("topic"), says("never")]
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=pool)))
    bench.record((0, 1), t=RECORDED)
    before = bench.harness
    look = bench.look(STEP)
    diagnosis, first, second = look.records
    assert isinstance(diagnosis, Diagnosis) and diagnosis.failure == "blind_high"
    assert isinstance(first, Decision) and isinstance(second, Decision)
    assert first.update.op == second.update.op == "add"
    # Recorded rollouts spoke for luck; fresh ones do not say it: nothing changes for them.
    assert first.update.criterion == says("luck") and not first.accepted  # type: ignore[union-attr]
    assert (first.update.expected, second.update.expected) == (1.0, 13 / 16)
    assert first.measured is not None and first.measured.gain == 0.0
    assert "below the margin" in first.reason
    assert second.update.criterion == says("topic") and second.accepted  # type: ignore[union-attr]
    assert second.measured is not None and second.measured.gain > 0.5
    for decision in (first, second):
        assert decision.diagnosis_id == diagnosis.id
        assert decision.update.evidence == (diagnosis.id, "g-000000-0", "g-000001-0")
    assert look.accepted == [second] and look.updates == [second.update]
    assert before.version == 0  # a look applies nothing itself
    assert says("topic") in bench.harness.rubric("t")


def test_a_rejection_is_remembered_by_later_looks(saver: SqliteSaver, tmp_path: Path) -> None:
    pool = [says("luck"), says("never")]
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=pool)))
    bench.record((0, 1), t=RECORDED)
    tried = decisions(bench.look(1))
    # The only task of its domain: sampling it less changes nothing, measured as well.
    assert [d.update.op for d in tried] == ["add", "pause"]
    assert not any(d.accepted for d in tried)
    asked = len(bench.policy.requests)
    bench.record((2, 3), t=RECORDED)
    diagnosis, nothing = bench.look(3).records
    assert isinstance(diagnosis, Diagnosis) and diagnosis.failure == "blind_high"
    assert isinstance(nothing, NoProposal) and "2 refused before" in nothing.reason
    assert len(bench.policy.requests) == asked  # and nothing was spent on it


def test_after_an_accepted_update_the_evidence_is_read_by_the_new_rubric(
    saver: SqliteSaver, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=[says("topic")])))
    bench.record((0, 1), t=RECORDED)
    before = diagnose_task(bench.memory, bench.harness, bench.spec, 1, "t")
    assert bench.look(1).accepted
    after = diagnose_task(bench.memory, bench.harness, bench.spec, 1, "t")
    assert after.evidence == before.evidence and before.failure != "healthy"
    assert after.failure == "healthy"  # repaired, says the evidence that asked for the repair
    assert bench.look(1).records == []


def test_without_evidence_nothing_happens(saver: SqliteSaver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=[says("topic")])))
    assert bench.look(1).records == []
    healthy = [f"0.{i + 1} {'alpha' if i > 3 else ''}" for i in range(8)]
    bench.record((2, 3, 4), t=healthy)
    assert bench.look(4).records == []
    assert bench.policy.requests == [] and list(saver.list(None)) == []


def test_a_task_without_new_rollouts_is_left_alone(saver: SqliteSaver, tmp_path: Path) -> None:
    """Not by schedule: a look works on what came in since the last one."""
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=[says("topic")])), every=2)
    bench.record((0, 1), t=RECORDED)
    assert bench.look(3).records == []
    assert bench.look(2).records != []


def test_the_tasks_that_lose_most_signal_come_first(saver: SqliteSaver, tmp_path: Path) -> None:
    tasks = [make_task(name, criteria=[says("topic")]) for name in ("a", "b", "c", "d")]
    bench = Bench(tmp_path, saver, harness_of(*tasks), tasks_per_look=2)
    half = [0.0] * 4 + [1.0] * 4
    bench.groups("a", half, [0.5] * 4 + [0.1, 0.2, 0.3, 0.9], 0)  # a quarter of it is right
    bench.groups("b", [1.0] * 8, RISING, 1)
    bench.groups("c", RISING, RISING, 2)  # healthy
    bench.groups("d", [1.0] * 8, RISING, 3)
    look = bench.evolver._needy(STEP, bench.harness)
    assert [d.task_id for d in look] == ["b", "d"]
    paused = apply(bench.harness, [Pause(task_ids=("b",), rationale="")])
    assert [d.task_id for d in bench.evolver._needy(STEP, paused)] == ["d", "a"]


def test_a_look_repeats_exactly(tmp_path: Path) -> None:
    looks = []
    for name in ("one", "two"):
        harness = harness_of(make_task("t", criteria=[says("luck"), says("topic")]))
        bench = Bench(tmp_path / name, None, harness)
        bench.record((0, 1), t=RECORDED)
        looks.append([r.model_dump_json() for r in bench.look(STEP).records])
    assert looks[0] == looks[1]


def test_a_stale_policy_stops_the_look(saver: SqliteSaver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, saver, harness_of(make_task("t", criteria=[says("topic")])))
    bench.record((0, 1), t=RECORDED)
    bench.policy.version = STEP  # one training step too few
    with pytest.raises(StalePolicyError):
        bench.evolver.look(STEP, bench.harness)


def test_updates_of_one_look_keep_the_floor_of_effective_tasks_together(
    saver: SqliteSaver, tmp_path: Path
) -> None:
    """Two mastered tasks of four. One pause leaves 3.19 effective tasks, both would leave 2.40."""
    harness = harness_of(*(make_task(name) for name in ("a", "b", "c", "d")))
    p = {"min_effective_tasks": 3.0}
    bench = Bench(tmp_path, saver, harness, p=p, tasks_per_look=2)
    for slot, name in enumerate("abcd"):
        mastered = name in "ab"
        bench.groups(name, [1.0] * 8 if mastered else RISING, [0.5] * 8 if mastered else RISING, slot)
    look = bench.look(STEP)
    assert len(look.accepted) >= 1
    assert {d.update.op for d in look.accepted} == {"pause"}
    chances = probabilities(bench.harness, {}, bench.spec.interfaces.p.paused_weight)
    assert effective_tasks(list(chances.values())) >= 3.0


def test_with_the_embedded_oracle(saver: SqliteSaver, tmp_path: Path) -> None:
    """The same way through with real quality: all answers meet the rubric, some are off topic."""
    from harnessrl.agents.scoring.scorer import Scorer
    from harnessrl.agents.usage import Usage
    from harnessrl.specs.schema import Oracle

    quality = Quality(topic=(("cat", "kitten"), ("purr",)), complete_words=6)
    task = make_task("t", rubric=[says("the")], criteria=[says("cat"), says("zebra")], quality=quality)
    texts = [
        "the cat likes to purr when it is calm.",
        "the rain falls on the town at night.",
        "the cat sat by the door for an hour.",
        "the bus was late and so was the train.",
    ]
    bench = Bench(tmp_path, saver, harness_of(task), by_index(texts))
    scorer = Scorer(Oracle(), Usage(), 0.2)
    bench.evolver.proposer.scorer = bench.evolver.critic.scorer = scorer  # type: ignore[attr-defined]
    for step in (0, 1):
        record_texts(bench.memory, bench.harness, step, {"t": texts * 2}, scorer)
    look = bench.look(STEP)
    (update,) = look.updates
    assert isinstance(update, Add) and update.criterion == says("cat")
    assert scorer.usage.judge_calls["critic"] > 0
