"""The harness evolver as a LangGraph state machine; one run of the graph works on one task.

    retrieve -> attribute -> propose -> critic -> (accepted: end)
                    |          ^ |         |
         (no owner: end)       | +-(refused, or rejected: at most `evolver.max_revisions` times)
                               +---- revise

The run of the graph starts from a diagnosis (`diagnose_task`): a failure class with its statistics.

State is small and JSON-plain (ids, numbers, the candidate). Rollouts and records stay in memory, and
what the nodes work with (policy, memory, harness) is the run-scoped `Context`, never checkpointed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command
from typing_extensions import TypedDict

from ...memory.index import find, signature
from ...memory.records import Decision, Diagnosis, NoProposal, RefusedProposal
from ...specs.harness import HarnessState
from ...specs.schema import RunSpec
from ...specs.updates import UPDATE, describe
from .attribute import diagnose, owners
from .attributor import Attributor
from .critic import Critic
from .evidence import Memory
from .observed import Observed
from .proposers import Case, NoCandidate, Proposer, Unusable


@dataclass(frozen=True)
class Context:
    """What the nodes work with. `say` shows a person what is going on.

    Without an `attributor` statistics alone attribute.
    """

    spec: RunSpec
    memory: Memory
    harness: HarnessState
    proposer: Proposer
    critic: Critic
    say: Callable[[str], None] = lambda _: None
    attributor: Attributor | None = None


class State(TypedDict, total=False):
    """One task's way through the graph. Records stand here as plain JSON data."""

    step: int
    task_id: str
    diagnosis: dict[str, Any]
    within: list[str]  # ids of decisions refused on this task, or that lost signal here, oldest first
    cross: list[str]  # ids of similar decisions on other tasks, most similar first
    candidate: dict[str, Any] | None
    revision: int
    decisions: Annotated[list[dict[str, Any]], operator.add]
    unusable: Annotated[list[dict[str, Any]], operator.add]  # proposals that the critic never saw
    no_proposal: dict[str, Any] | None


def retrieve(state: State, runtime: Runtime[Context]) -> State:
    """Within-task: what was refused here, or did harm (exact). Cross-task: what was tried on similar
    failures elsewhere, and what the critic measured or training showed (semantic)."""
    ctx = runtime.context
    ctx.say(f"reading the evidence on {state['task_id']}")
    diagnosis = Diagnosis.model_validate(state["diagnosis"])
    rules = ctx.spec.evolver.retrieve
    if ctx.spec.evolver.memory == "look":
        return {"within": [], "cross": [], "revision": 0}
    hits = []
    if rules.across:
        hits = ctx.memory.index.search(
            signature(diagnosis), rules.across, type="decision", not_task=diagnosis.task_id
        )
    refused = _refused_before(ctx, diagnosis)
    within = [d.id for d in refused[max(0, len(refused) - rules.within) :]]
    return {
        "within": within,
        "cross": [h.record_id for h in hits if h.record_id not in within],
        "revision": 0,
    }


def attribute(state: State, runtime: Runtime[Context]) -> Command[Literal["propose", "__end__"]]:
    """From the failure class to the interfaces that can repair it, the usual owner first, or the one
    that the evolver model chose of those."""
    ctx = runtime.context
    diagnosis = Diagnosis.model_validate(state["diagnosis"])
    interfaces = owners(diagnosis.failure, diagnosis.task_id, ctx.harness, ctx.spec)
    attributed = diagnosis.model_copy(update={"interfaces": interfaces})
    if interfaces and ctx.attributor is not None:
        attributed = ctx.attributor.attribute(_case(state, ctx, attributed), ctx.say)
    return Command(
        update={"diagnosis": attributed.model_dump(mode="json")},
        goto="propose" if interfaces else "__end__",
    )


def propose(state: State, runtime: Runtime[Context]) -> Command[Literal["critic", "revise", "__end__"]]:
    """One typed candidate, or the record that there is none, or none that may be measured."""
    ctx = runtime.context
    diagnosis = Diagnosis.model_validate(state["diagnosis"])
    update = ctx.proposer.propose(_case(state, ctx, diagnosis))
    if not isinstance(update, NoCandidate):
        known = ctx.harness.all_criteria(diagnosis.task_id)
        if ctx.spec.evolver.critic.test == "measure":
            ctx.say(f"measuring {describe(update, known)}")
        candidate = update.model_dump(mode="json")
        return Command(update={"candidate": candidate}, goto="critic")
    about: dict[str, Any] = {
        "step": diagnosis.step,
        "harness_version": ctx.harness.version,
        "diagnosis_id": diagnosis.id,
        "task_id": diagnosis.task_id,
        "reason": update.reason,
    }
    if isinstance(update, Unusable):
        ctx.say(f"refused a proposal for {diagnosis.task_id}: {update.reason}")
        revision = state["revision"]
        refused = RefusedProposal(
            id=f"r-{diagnosis.id[2:]}-{revision}", revision=revision, proposed=update.proposed, **about
        )
        return Command(
            update={"candidate": None, "unusable": [refused.model_dump(mode="json")]},
            goto="revise" if revision < ctx.spec.evolver.max_revisions else "__end__",
        )
    nothing = NoProposal(id=f"n-{diagnosis.id[2:]}", **about)
    update_state = {"candidate": None, "no_proposal": nothing.model_dump(mode="json")}
    return Command(update=update_state, goto="__end__")


def critic(state: State, runtime: Runtime[Context]) -> Command[Literal["revise", "__end__"]]:
    """Measure the candidate on the frozen current policy: accept, reject, or send it back."""
    ctx = runtime.context
    diagnosis = Diagnosis.model_validate(state["diagnosis"])
    update = UPDATE.validate_python(state["candidate"])
    revision = state["revision"]
    test = ctx.spec.evolver.critic.test == "measure"
    verdict = ctx.critic.decide(update, ctx.harness, state["step"], revision, test)
    decision = Decision(
        id=f"u-{diagnosis.id[2:]}-{revision}",
        step=diagnosis.step,
        harness_version=ctx.harness.version,
        diagnosis_id=diagnosis.id,
        task_id=diagnosis.task_id,
        revision=revision,
        update=update,
        accepted=verdict.accepted,
        reason=verdict.reason,
        measured=verdict.measured,
        retrieved=[*state["within"], *state["cross"]],
    )
    word = "accepted" if verdict.accepted else "rejected"
    known = ctx.harness.all_criteria(diagnosis.task_id)
    ctx.say(f"{word} {describe(update, known)}: {verdict.reason}")
    again = not verdict.accepted and revision < ctx.spec.evolver.max_revisions
    return Command(
        update={"decisions": [decision.model_dump(mode="json")]}, goto="revise" if again else "__end__"
    )


def revise(state: State) -> State:
    """Why is in `decisions` or in `unusable`; the next proposal counts as one more revision."""
    return {"revision": state["revision"] + 1, "candidate": None}


def build_graph(checkpointer: Any = None) -> Any:
    """The compiled evolver graph. `checkpointer` keeps its states (LangGraph's SQLite saver)."""
    graph = StateGraph(State, context_schema=Context)
    graph.add_node("retrieve", retrieve)
    graph.add_node("attribute", attribute)
    graph.add_node("propose", propose)
    graph.add_node("critic", critic)
    graph.add_node("revise", revise)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "attribute")
    graph.add_edge("revise", "propose")
    return graph.compile(checkpointer=checkpointer, name="evolver")


def diagnose_task(
    memory: Memory, harness: HarnessState, spec: RunSpec, step: int, task_id: str
) -> Diagnosis:
    """The diagnosis of one task from everything on record up to `step`."""
    staleness = spec.evolver.horizon
    domain = harness.tasks[task_id].domain
    others = [
        group
        for other, task in harness.tasks.items()
        if task.domain == domain and other != task_id
        for group in memory.current_groups(harness, step, staleness, other)
    ]
    groups = memory.current_groups(harness, step, staleness, task_id)
    return diagnose(task_id, groups, others, harness, spec, step)


def _case(state: State, ctx: Context, diagnosis: Diagnosis) -> Case:
    """What is known about a task so far, in this run of the graph and before it."""
    here = [Decision.model_validate(d) for d in state.get("decisions", [])]
    within, similar = (_decisions(ctx.memory, state[name]) for name in ("within", "cross"))
    about = [*((d, diagnosis.task_id) for d in within), *((d, d.task_id) for d in similar)]
    observed = {d.id: seen for d, task in about if (seen := _observed(ctx, d, task, state["step"]))}
    unusable = [RefusedProposal.model_validate(r) for r in state.get("unusable", [])]
    return Case(diagnosis, ctx.harness, similar, [*within, *here], observed, unusable)


def _decisions(memory: Memory, ids: list[str]) -> list[Decision]:
    return [record for record in find(memory.records, ids) if isinstance(record, Decision)]


def _refused_before(ctx: Context, diagnosis: Diagnosis) -> list[Decision]:
    """Rejections on this task, and unmeasured changes after which it lost signal: neither is tried again.

    They count as long as evidence does: the policy that a candidate was measured on moves away.
    """
    since = diagnosis.step - ctx.spec.evolver.max_staleness
    recent = [d for d in ctx.memory.decisions(diagnosis.task_id) if d.step > since]
    return [d for d in recent if not d.accepted or _lost_signal(ctx, d, diagnosis)]


def _lost_signal(ctx: Context, decision: Decision, diagnosis: Diagnosis) -> bool:
    """Groups are few: a loss below what would count as a gain is none."""
    seen = _observed(ctx, decision, diagnosis.task_id, diagnosis.step)
    return seen is not None and seen.gain <= -ctx.spec.evolver.critic.margin


def _observed(ctx: Context, decision: Decision, task_id: str, step: int) -> Observed | None:
    """What followed an unmeasured change, on as many groups as a diagnosis takes."""
    rules = ctx.spec.evolver
    return ctx.memory.observed(decision, task_id, step, rules.horizon, rules.attribute.min_groups)
