"""One look of the evolver at the evidence: which tasks need work, and the graph run on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...memory.records import AnyRecord, Decision, Diagnosis, NoProposal, RefusedProposal
from ...specs.harness import HarnessState, apply
from ...specs.sampling import probabilities
from ...specs.schema import RunSpec
from ...specs.updates import Update
from .attribute import severity
from .attributor import Attributor
from .critic import Critic
from .evidence import Memory
from .graph import Context, diagnose_task
from .proposers import Proposer


@dataclass(frozen=True)
class Look:
    """What one look concluded: records for the log, and the accepted decisions among them."""

    records: list[AnyRecord]
    accepted: list[Decision]

    @property
    def updates(self) -> list[Update]:
        """The updates that become the next harness version."""
        return [d.update for d in self.accepted]


class Evolver:
    """Turns evidence into measured updates. It never applies them: the controller does."""

    def __init__(
        self,
        graph: Any,
        proposer: Proposer,
        critic: Critic,
        memory: Memory,
        spec: RunSpec,
        attributor: Attributor | None = None,
    ) -> None:
        self.graph = graph
        self.proposer = proposer
        self.critic = critic
        self.memory = memory
        self.spec = spec
        self.attributor = attributor

    def look(self, step: int, harness: HarnessState, say: Callable[[str], None] = lambda _: None) -> Look:
        """Work on the tasks that lose most signal, on evidence that came in since the last look."""
        look = Look([], [])
        for diagnosis in self._needy(step, harness):
            # What was accepted in this look counts already: changes to p act on one another.
            interim = replace(apply(harness, look.updates, step), version=harness.version)
            context = Context(
                self.spec, self.memory, interim, self.proposer, self.critic, say, self.attributor
            )
            start = {
                "step": step,
                "task_id": diagnosis.task_id,
                "diagnosis": diagnosis.model_dump(mode="json"),
            }
            config = {"configurable": {"thread_id": thread_id(step, diagnosis.task_id)}}
            state = self.graph.invoke(start, config, context=context)
            look.records.append(Diagnosis.model_validate(state["diagnosis"]))
            decisions = [Decision.model_validate(d) for d in state.get("decisions", [])]
            unusable = [RefusedProposal.model_validate(r) for r in state.get("unusable", [])]
            attempts: list[Decision | RefusedProposal] = [*decisions, *unusable]
            attempts.sort(key=lambda attempt: attempt.revision)
            look.records.extend(attempts)
            look.accepted.extend(d for d in decisions if d.accepted)
            if state.get("no_proposal"):
                look.records.append(NoProposal.model_validate(state["no_proposal"]))
        return look

    def _needy(self, step: int, harness: HarnessState) -> list[Diagnosis]:
        """Tasks with new evidence and a diagnosis that an interface can answer, worst first."""
        p = self.spec.interfaces.p
        chances = probabilities(harness, p.domain_shares, p.paused_weight)
        new = self.memory.groups(step, self.spec.evolver.every)
        tasks = sorted({g.task_id for g in new})
        found = [diagnose_task(self.memory, harness, self.spec, step, t) for t in tasks]
        needy = [d for d in found if d.interfaces]
        needy.sort(key=lambda d: (-severity(d, chances[d.task_id]), d.task_id))
        return needy[: self.spec.evolver.tasks_per_look]


def thread_id(step: int, task_id: str) -> str:
    """The LangGraph thread of one task in one look."""
    return f"step-{step:06d}-{task_id}"


def look_of(thread: str) -> tuple[int, str]:
    """The step and the task id that `thread_id` made a thread's id from."""
    _, step, task_id = thread.split("-", 2)
    return int(step), task_id
