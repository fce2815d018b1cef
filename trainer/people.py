"""Answers to what people ask of the harness: the same measurement as for the evolver's candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..agents.evolver.critic import Critic
from ..memory.records import Accepted, AnyRecord, Decision, Refused
from ..specs.harness import HarnessState
from ..specs.updates import describe, resolve
from .requests import HarnessRequest, RollbackRequest


@dataclass(frozen=True)
class PersonAnswer:
    """What to say and to log, and the fields of the new version's `Accepted`, if there is one."""

    told: str
    records: list[AnyRecord]
    accepted: dict[str, Any] | None = None


def open_requests(
    asked: Iterable[HarnessRequest], records: Sequence[AnyRecord], step: int
) -> list[HarnessRequest]:
    """The requests of the steps up to `step` that no surviving record answers.

    After a resume, steps are done again that were done before a request was handed in: it waits.
    """
    answers = [r for r in records if isinstance(r, Decision | Accepted | Refused)]
    answered = {r.request for r in answers}
    return [r for r in asked if r.id not in answered and r.after_step <= step]


def answer_request(
    request: HarnessRequest,
    step: int,
    versions: Sequence[HarnessState],
    critic: Critic,
    tell: Callable[[str], None] = lambda _: None,
) -> PersonAnswer:
    """Answer an open request after `step`. `tell` hears what a measurement costs before it begins.

    Raises `StalePolicyError` if the critic's policy has not taken just the steps 0 to `step`.
    """
    by: dict[str, Any] = {"author": request.author, "request": request.id}
    harness = versions[-1]
    if isinstance(request, RollbackRequest):
        if request.version < len(versions):
            told = f"back to version {request.version}, as {request.author} asked"
            return PersonAnswer(told, [], {"rolled_back_to": request.version, **by})
        return refuse(request, step, harness, f"there is no version {request.version} yet")
    try:
        update = resolve(request.update, harness.tasks)
    except ValueError as error:
        return refuse(request, step, harness, str(error))
    # A stream of its own: the evolver's candidates count revisions from 0.
    asked = f"{describe(update)} of {request.author}"

    def cost(tasks: int, rollouts: int) -> None:
        tell(f"measuring {asked} on {tasks} task{'s' * (tasks > 1)}: {rollouts:,} rollouts")

    verdict = critic.decide(update, harness, step, request.id, not request.force, cost)
    decision = Decision(
        id=f"u-{step:06d}-{request.id}",
        step=step,
        harness_version=harness.version,
        diagnosis_id=None,
        task_id=update.task_ids[0],
        revision=0,
        update=update,
        accepted=verdict.accepted,
        reason=verdict.reason,
        measured=verdict.measured,
        retrieved=[],
        **by,
    )
    word = "accepted" if verdict.accepted else "rejected"
    told = f"{word} {asked}: {verdict.reason}"
    accepted = {"decision_ids": [decision.id], "updates": [update], **by} if verdict.accepted else None
    return PersonAnswer(told, [decision], accepted)


def refuse(request: HarnessRequest, step: int, harness: HarnessState, reason: str) -> PersonAnswer:
    """The answer to a request that cannot be looked at."""
    record = Refused(
        id=f"x-{step:06d}-{request.id}",
        step=step,
        harness_version=harness.version,
        author=request.author,
        request=request.id,
        reason=reason,
    )
    return PersonAnswer(f"refused what {request.author} asked: {reason}", [record])
