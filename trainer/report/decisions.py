"""The decisions table: what was proposed, what the critic measured, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...memory.records import Decision, Diagnosis, Measurement, NoProposal, RefusedProposal
from ...specs.updates import describe
from .data import RunData
from .text import interval, number, plural, signed, spelled


@dataclass(frozen=True)
class Row:
    """One row: a decision, a refused proposal, or a diagnosis for which nothing was left to propose."""

    anchor: str
    outcome: str  # `accepted`, `rejected`, `refused` or `no proposal`
    step: int
    task_id: str
    failure: str
    sentence: str  # of the diagnosis
    attribution: str  # who attributed it and why, where the evolver model was asked
    update: str
    rationale: str
    revision: int | None  # None: no proposal
    measured: list[str]
    reason: str


@dataclass(frozen=True)
class Tally:
    """Decisions on one interface."""

    interface: str
    accepted: int
    rejected: int
    unmeasured: int  # rejected before anything was measured
    rollouts: int  # fresh rollouts the critic spent


def rows(data: RunData) -> list[Row]:
    """Decisions, and refused and missing proposals, in the order of the log."""
    diagnoses = {diagnosis.id: diagnosis for diagnosis in data.of(Diagnosis)}
    criteria = data.criteria
    out: list[Row] = []
    decisions = 0
    for record in data.records:
        if not isinstance(record, Decision | RefusedProposal | NoProposal):
            continue
        found = diagnoses.get(record.diagnosis_id or "")
        if found:
            failure = spelled(found.failure)
        else:
            by_hand = record.diagnosis_id is None
            failure = "asked for by a person" if by_hand else "diagnosis not in the log"
        sentence = found.sentence if found else ""
        attribution = found.attributed if found else ""
        if not isinstance(record, Decision):
            refused = record if isinstance(record, RefusedProposal) else None
            row = Row(
                anchor="",
                outcome="refused" if refused else "no proposal",
                step=record.step,
                task_id=record.task_id,
                failure=failure,
                sentence=sentence,
                attribution=attribution,
                update=refused.proposed if refused else "",
                rationale="",
                revision=refused.revision if refused else None,
                measured=[],
                reason=record.reason,
            )
        else:
            row = Row(
                anchor=f"decision-{decisions}",
                outcome="accepted" if record.accepted else "rejected",
                step=record.step,
                task_id=record.task_id,
                failure=failure,
                sentence=sentence,
                attribution=attribution,
                update=describe(record.update, criteria.values()),
                rationale=record.update.rationale,
                revision=record.revision,
                measured=_measured(record),
                reason=record.reason,
            )
            decisions += 1
        out.append(row)
    return out


def tallies(data: RunData) -> list[Tally]:
    """Accepted and rejected decisions per interface, in the order p, g, c."""
    out = []
    for interface in "pgc":
        here = [d for d in data.of(Decision) if d.update.interface == interface]
        out.append(
            Tally(
                interface=interface,
                accepted=sum(d.accepted for d in here),
                rejected=sum(not d.accepted for d in here),
                unmeasured=sum(not d.accepted and d.measured is None for d in here),
                rollouts=sum(d.measured.rollouts for d in here if d.measured),
            )
        )
    return out


def _measured(decision: Decision) -> list[str]:
    """The measurement, a line each: signal, gain, test, guards, evidence."""
    found = decision.measured
    if found is None:
        return ["not measured"]
    signal = "expected signal" if decision.update.interface == "p" else "signal rate"
    gain = f"gain {signed(found.gain)} {interval(found.interval)}, margin {number(found.margin)}"
    if decision.update.expected is not None:
        gain += f" (proposer expected {signed(decision.update.expected)})"
    return [
        f"{signal} {number(found.before)} → {number(found.after)}",
        gain,
        _test(found),
        *_guards(decision.update.interface, found),
        *(line for task_id, one in found.tasks.items() for line in _on_task(task_id, one, decision)),
        f"on {plural(found.rollouts, 'fresh rollout')}" if found.rollouts else "on recorded rollouts",
    ]


def _on_task(task_id: str, found: Measurement, decision: Decision) -> list[str]:
    """What was seen on one of several tasks."""
    return [
        f"{task_id}: {number(found.before)} → {number(found.after)}, "
        f"gain {signed(found.gain)} {interval(found.interval)}",
        *_guards(decision.update.interface, found),
    ]


def _test(found: Measurement) -> str:
    relation = "≤" if found.p_no_gain <= found.alpha else ">"
    return f"p(no gain) {number(found.p_no_gain)} {relation} alpha {number(found.alpha)}"


def _guards(interface: str, found: Measurement) -> list[str]:
    sides = "plain → guided" if interface == "g" else "before → after"
    return [
        f"guard {spelled(name)} ({sides}): {number(before)} → {number(after)}"
        for name, (before, after) in found.guards.items()
    ]
